"""Runs a reward function of the user, in a process of its own.

`rampcli.rl.rewards` starts `python -P -m rampcli.rl.reward_child NAME REQUESTS ANSWERS
PARENT`. REQUESTS and ANSWERS are descriptors of pipes, and PARENT is the process that starts this
one.

A request is a line with a JSON list `[prompt, response, example]`. An answer is a line with a JSON
list `[number, reward, reason]`: `number` counts the answers, and either `reward` or `reason` is
null. Answer 0 comes before the first request. It says why the function cannot be loaded, if it
cannot.

What the function prints goes to standard output and standard error, never into these pipes.
"""

import fcntl
import importlib
import inspect
import json
import linecache
import math
import os
import signal
import sys
import sysconfig
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from rampcli.errors import printable
from rampcli.machine.lifeline import STOPPING, fork_under_guard
from rampcli.settings.rewards import UserFunction

FIRST_DESCRIPTOR = 200
"""The pipes get descriptors from this one on, out of the way of code that writes to fixed ones."""
LONGEST_MESSAGE = 150
"""Characters of an exception's message that are shown, so that its place fits beside them."""
MOST_FUNCTIONS = 5
"""Functions of the user's module that are named if the wanted one is missing."""
HIDDEN_FRAMES = (os.path.dirname(os.path.dirname(__file__)) + os.sep, importlib.__file__ or "", "<")
"""Prefixes of files whose frames are hidden in tracebacks. `<string>` is code in `eval`."""
INSTALLED = tuple(
    sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
LARGEST_REWARD = 10**18
"""Largest reward, of either sign. Squares of larger ones may overflow."""
T = TypeVar("T")


class BadRewardError(Exception):
    """The function cannot be used, or returned no number of an accepted size."""


def main() -> None:
    """Loads the function, then answers requests until their pipe is closed."""
    source, _, function = sys.argv[1].rpartition(":")
    requests, answers, parent = map(int, sys.argv[2:])
    restore = pass_over_stop_signals()
    fork_under_guard(parent, (requests, answers))
    os.register_at_fork(after_in_child=restore)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as likelihood:
        likelihood.write("1000")  # if memory is short, the kernel kills this process, not the rank
    sys.argv[1:] = []
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    serve(UserFunction(source, function), _move(requests), _move(answers))


def pass_over_stop_signals() -> Callable[[], None]:
    """Makes stop signals do nothing, because a cluster may send them to all processes of a rank.

    Returns a function that undoes this. Processes forked by the user's code call it, because that
    code may end them with a signal.
    """
    before = {number: signal.getsignal(number) for number in STOPPING}
    for number in STOPPING:
        signal.signal(number, lambda *_: None)

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    return restore


def _move(pipe: int) -> int:
    moved = fcntl.fcntl(pipe, fcntl.F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR)
    os.close(pipe)
    return moved


def serve(name: UserFunction, requests: int, answers: int) -> None:
    """Answers the requests that arrive on a pipe."""
    process, numbers = os.getpid(), count()

    def attempt(work: Callable[..., T], *arguments: Any) -> tuple[T | None, str | None]:
        """Returns a result, or the reason why it is missing."""
        result, reason = None, None
        try:
            result = work(*arguments)
        except BaseException as error:  # the user's code may also raise SystemExit
            reason = describe(error)
        if os.getpid() != process:  # a copy that the user's code has forked
            os._exit(0)
        return result, reason

    def answer(reward: float | None, reason: str | None) -> None:
        os.write(answers, f"{json.dumps([next(numbers), reward, reason])}\n".encode())

    function, reason = attempt(load, name)
    answer(None, reason)
    if function is not None:
        with open(requests, "rb") as lines:
            for line in lines:
                answer(*attempt(score, function, line))


def score(function: Callable[..., Any], request: bytes) -> float:
    """Returns the reward of the pair in a request."""
    return number(function(*json.loads(request)))


def load(name: UserFunction) -> Callable[..., Any]:
    """Imports a function. The folder of its file is importable, as in `python FILE.py`.

    Raises:
        BaseException: whatever the import raises.
        BadRewardError: the module has no such function.
    """
    try:
        module = _import_file(name.source) if name.is_file else import_module(name.source)
    except BaseException as error:
        print_traceback(error)
        raise
    function: Callable[..., Any] | None = getattr(module, name.function, None)
    if not callable(function):
        functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        others = f"; it has {', '.join(functions[:MOST_FUNCTIONS])}" if functions else ""
        raise BadRewardError(f"it has no function {name.function}{others}")
    try:
        signature = inspect.signature(function)
    except ValueError:  # functions written in C may have none
        return function
    try:
        signature.bind("", "", {})
    except TypeError as error:
        raise BadRewardError(
            f"{name.function}{signature} does not take (prompt, response, example): {error}"
        ) from None
    return function


def _import_file(file: str) -> ModuleType:
    sys.path.insert(0, os.path.dirname(os.path.realpath(file)))
    spec = spec_from_file_location(Path(file).stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def print_traceback(error: BaseException) -> None:
    """Prints the traceback of an error, from the first line of the user's code on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(HIDDEN_FRAMES):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)


def number(value: Any) -> float:
    """Returns a number of Python, NumPy or torch as a float.

    Raises:
        BadRewardError: the value is not a number, not finite, or too large.
    """
    kind = type(value)
    if not hasattr(kind, "__float__") and not hasattr(kind, "__index__"):
        raise BadRewardError(f"returned a {kind.__name__}, not a number")
    reward = float(value)
    if not math.isfinite(reward):
        raise BadRewardError(f"returned {reward}, not a finite number")
    if abs(reward) > LARGEST_REWARD:
        raise BadRewardError(f"returned {reward}, not a number from -1e18 to 1e18")
    return reward


def describe(error: BaseException) -> str:
    """Returns the type and the message of an error, and the line of the user's code it is from."""
    try:
        message = str(error)[:LONGEST_MESSAGE]
    except BaseException:  # it is the user's class
        message = ""
    if isinstance(error, BadRewardError):
        return printable(message)
    words = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return printable(f"{words}{place_of(error)}")


def place_of(error: BaseException) -> str:
    """Returns the innermost line of the user's code as " (FILE:LINE: TEXT)", or "" if unknown."""
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(HIDDEN_FRAMES)
    ]
    users = [place for place in frames if not place[0].startswith(INSTALLED)]
    if not frames:
        return ""
    file, line = (users or frames)[-1]
    text = linecache.getline(file, line).strip()
    return f" ({file}:{line}: {text})" if text else f" ({file}:{line})"


if __name__ == "__main__":
    main()
