"""How Python is started: never with the working directory on its path, where a stranger's `torch.py` may lie."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress


def python(module: str, *arguments: str, interpreter: str = sys.executable) -> list[str]:
    """Returns the command that runs a module; `-P` keeps the working directory off its path."""
    return [interpreter, "-P", "-m", module, *arguments]


def safe_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns a copy of an environment in which no Python imports from the working directory.

    An empty entry of PYTHONPATH means the working directory, and comes from `PYTHONPATH=$PYTHONPATH:/x` where it was unset. It is
    dropped. An entry that a user has written out stays.
    """
    safe = {**environment, "PYTHONSAFEPATH": "1"}
    if "PYTHONPATH" in safe:
        safe["PYTHONPATH"] = os.pathsep.join(
            entry for entry in safe["PYTHONPATH"].split(os.pathsep) if entry
        )
        if not safe["PYTHONPATH"]:
            del safe["PYTHONPATH"]
    return safe


def leave_working_directory_out() -> None:
    """Take the working directory off this process's path, and apply `safe_environment` to what it starts from now on.

    An entry that a user has written out in PYTHONPATH stays, and so do those of installed packages.
    """
    named = {
        os.path.realpath(entry)
        for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if entry
    }
    ours = next(
        (place for place, entry in enumerate(sys.path) if entry == os.path.dirname(os.__file__)), 0
    )
    with suppress(FileNotFoundError):  # a working directory that was deleted holds nothing
        here = os.path.realpath(os.getcwd())
        sys.path[:ours] = [
            entry for entry in sys.path[:ours] if os.path.realpath(entry) != here or here in named
        ]
    os.environ.update(safe := safe_environment())
    if "PYTHONPATH" not in safe:
        os.environ.pop("PYTHONPATH", None)
