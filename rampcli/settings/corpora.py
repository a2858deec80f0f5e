"""Finds the files of the corpora and their shares of the samples."""

import os
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from math import gcd, lcm
from pathlib import Path
from typing import TYPE_CHECKING

from rampcli.errors import Remedy, UsageError, set_to, shown
from rampcli.files.hub import is_pinned

if TYPE_CHECKING:
    from rampcli.settings.config import Config

MOST_SHARES = 2**31
"""Limit of the sum of whole shares, so that products with counts of samples fit in 64 bits."""
MOST_DIGITS = 30
PATH_FORMS: dict[str, list[Remedy]] = {
    "indexed": [set_to("data.path", "PREFIX", note=", as given to `rampcli data build`")],
    "text": [set_to("data.path", "FILE"), "a folder"],
    "pairs": [set_to("data.path", "FILE.jsonl"), set_to("data.task", "sort")],
}
"""Remedies without a path, for each source that reads the user's files."""
DESCRIPTIONS = {"mock": "random tokens", "stdlib": "source of Python's standard library, as bytes"}
"""What the sources without files contain."""
KEYS_OF_SOURCES = {
    "path": ("text", "indexed", "pairs"),
    "blend": ("indexed", "text"),
    "validation_path": ("indexed", "text", "pairs"),
    "validation": ("indexed", "text", "pairs"),
    "task": ("pairs",),
    "response_end": ("pairs",),
}
"""The sources that settings of `data` apply to."""
BLEND_KEY, NAMED_KEY = "data.blend", "data.validation"


def corpora_of(config: "Config") -> list[tuple[int, Path]]:
    """Returns the training corpora as (share, path).

    Shares are whole numbers in proportion to the weights.

    Raises:
        UsageError: `data.blend` is not `[weight,path,weight,path,...]`.
    """
    blend = config.data.blend
    if blend is None:
        return [] if config.data.path is None else [(1, Path(config.data.path).expanduser())]
    if len(blend) % 2 or not blend:
        raise _invalid_blend(blend, "is not a list of weights and paths in turn")
    weights = []
    for word in blend[::2]:
        try:
            weight = Decimal(word)
        except InvalidOperation:
            weight = Decimal("nan")
        if not weight.is_finite():
            raise _invalid_blend(blend, f"has {word} in place of a weight")
        if weight <= 0:
            raise _invalid_blend(blend, f"has the weight {word}, which is not above 0")
        if abs(weight.adjusted()) > MOST_DIGITS:
            raise _too_many_digits()
        weights.append(Fraction(weight))
    return list(
        zip(shares_of(weights), (Path(path).expanduser() for path in blend[1::2]), strict=True)
    )


def paths_of(config: "Config") -> dict[Path, str]:
    """Returns the paths of all corpora, each with the setting that names it."""
    paths = dict.fromkeys(
        (path for _, path in corpora_of(config)),
        "data.path" if config.data.blend is None else BLEND_KEY,
    )
    held_out = {
        path: "data.validation_path" if name is None else NAMED_KEY
        for name, path in validation_paths(config).items()
    }
    return held_out | paths


def validation_paths(config: "Config") -> dict[str | None, Path]:
    """Returns the corpora that are used only for validation, by name.

    The one of `data.validation_path` has the name None.
    """
    data = config.data
    paths = [*(data.validation or {}).items()]
    found: dict[str | None, Path] = {name: Path(path).expanduser() for name, path in paths}
    if data.validation_path is not None:
        found[None] = Path(data.validation_path).expanduser()
    return found


def validation_names(config: "Config") -> tuple[str | None, ...]:
    """Returns the names of the validation corpora. A run without named ones has one, None."""
    return tuple(config.data.validation or (None,))


def describe_data(config: "Config") -> str:
    """Returns what a run trains on: `mock (random tokens)`, `indexed data/wiki`, ..."""
    data = config.data
    if data.source in DESCRIPTIONS:
        return f"{data.source} ({DESCRIPTIONS[data.source]})"
    if data.task is not None:
        return f"{data.source}, data.task={data.task}"
    if data.blend is not None:
        weighted = zip(data.blend[::2], data.blend[1::2], strict=True)
        return f"{data.source} " + " + ".join(f"{weight} x {path}" for weight, path in weighted)
    return data.source if data.path is None else f"{data.source} {data.path}"


def missing_corpora(config: "Config") -> list[str]:
    """Returns the settings that name corpora which this machine does not have, as KEY=PATH."""
    names = {path: name for name, path in validation_paths(config).items()}
    return [
        f"{key}={shown({names[path]: str(path)} if key == NAMED_KEY else str(path))}"
        for path, key in paths_of(config).items()
        if not any(os.path.exists(f"{path}{ending}") for ending in ("", ".idx"))
    ]


def missing_weights(config: "Config") -> list[str]:
    """Returns `model.init_from`, as KEY=PATH, if it names a folder that this machine lacks."""
    text = config.model.init_from
    if text is None or is_pinned(text) or os.path.exists(os.path.expanduser(text)):
        return []
    return [f"model.init_from={text}"]


def missing_here(config: "Config") -> list[str]:
    """Returns the settings that name files which this machine does not have, as KEY=PATH."""
    return missing_corpora(config) + missing_weights(config)


def shares_of(weights: Sequence[Fraction]) -> list[int]:
    """Returns the smallest whole numbers in proportion to the weights.

    Raises:
        UsageError: the weights have too many digits.
    """
    unit = lcm(*(weight.denominator for weight in weights))
    whole = [int(weight * unit) for weight in weights]
    shares = [share // gcd(*whole) for share in whole]
    if sum(shares) > MOST_SHARES:
        raise _too_many_digits()
    return shares


def _too_many_digits() -> UsageError:
    return UsageError(
        "the weights of data.blend have too many digits",
        keys=(BLEND_KEY,),
        remedy="weights of up to nine digits",
    )


def _invalid_blend(blend: list[str], reason: str) -> UsageError:
    return UsageError(
        f"data.blend={shown(blend)} {reason}",
        keys=(BLEND_KEY,),
        remedy=set_to(BLEND_KEY, [0.7, "data/wiki", 0.3, "data/code"]),
    )


def lacks_path(config: "Config") -> bool:
    """Returns True if the source reads the user's files and none is given."""
    data = config.data
    given = (data.path, data.blend, data.task)
    return data.source in PATH_FORMS and given == (None, None, None)
