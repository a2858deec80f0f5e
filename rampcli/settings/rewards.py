"""Names of reward functions, checked without importing anything.

A name is one of:

* the name of a built-in function, such as `exact_match`;
* the name of an extension, see `rampcli.plugins.extensions`;
* `module:function`, a function of an installed module or of one on PYTHONPATH;
* `FILE.py:function`, a function of a file.
"""

import difflib
import os
from dataclasses import dataclass

from rampcli.errors import UsageError, set_to
from rampcli.plugins.extensions import REWARD_KEY, entry_point, find

KEY = REWARD_KEY
TRUSTED_REWARD = "RAMPCLI_REWARD"
"""Environment variable of ranks: the function of a user that they may run."""
BUILT_IN_REWARDS = ("exact_match", "contains", "length")
"""Names of the built-in reward functions. `rampcli.rl.rewards` implements them."""


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A reward function of the user.

    Attributes:
        source: dotted name of a module, or absolute path of a file that ends in `.py`.
    """

    source: str
    function: str

    @property
    def is_file(self) -> bool:
        """True if the source is a file, not a module."""
        return self.source.endswith(".py")

    def __str__(self) -> str:
        return f"{self.source}:{self.function}"


def names_code(text: str) -> bool:
    """Returns whether a name is that of a file or module, and not of a function known before."""
    return ":" in text


def parse_reward_name(text: str) -> str | UserFunction:
    """Returns the name of a built-in reward function, or the user's function that a text names.

    A relative path is relative to the working directory.

    Raises:
        UsageError: the text has none of the forms, or names a file that does not exist.
    """
    if text in BUILT_IN_REWARDS:
        return text
    source, colon, function = text.rpartition(":")
    if not colon:
        extension = _extension(text)
        if extension is None:
            raise _not_built_in(text)
        return extension
    if not function.isidentifier():
        raise _malformed(text)
    if source.endswith(".py"):
        file = os.path.abspath(os.path.expanduser(source))
        if not os.path.isfile(file):
            raise UsageError(
                f"{KEY}={text}: there is no file {file}",
                keys=(KEY,),
                remedy=f"the path of a file: {KEY}=FILE.py:{function}",
            )
        return UserFunction(file, function)
    if not all(map(str.isidentifier, source.split("."))):
        raise _malformed(text)
    return UserFunction(source, function)


def _extension(name: str) -> UserFunction | None:
    """Returns the function of an extension. The module of an installed one is not imported."""
    if (point := entry_point(KEY, name)) is not None:
        return UserFunction(point.module, point.attr)
    if not name.isidentifier() or (known := find(KEY, name)) is None:
        return None
    return UserFunction(known.source, known.function.__qualname__)


def _not_built_in(text: str) -> UsageError:
    if text.endswith(".py"):
        remedy = f"{KEY}={text}:FUNCTION"
    else:
        near = difflib.get_close_matches(text, BUILT_IN_REWARDS, n=1, cutoff=0.5)
        remedy = (
            " or ".join(f"{KEY}={name}" for name in near or BUILT_IN_REWARDS)
            + f", or a function of yours: {KEY}=FILE.py:FUNCTION"
        )
    return UsageError(f"{KEY}={text} is not a built-in reward function", keys=(KEY,), remedy=remedy)


def _malformed(text: str) -> UsageError:
    return UsageError(
        f"{KEY}={text} is neither FILE.py:FUNCTION nor MODULE:FUNCTION",
        keys=(KEY,),
        remedy=set_to(KEY, "rewards.py:score", note=" (function score of the file rewards.py)"),
    )
