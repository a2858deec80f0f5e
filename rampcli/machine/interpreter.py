"""Starts Python without the working directory on its path, which may hold a foreign `torch.py`."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress


def python_command(module: str, *arguments: str, interpreter: str = sys.executable) -> list[str]:
    """Returns the command that runs a module. `-P` keeps the working directory off its path."""
    return [interpreter, "-P", "-m", module, *arguments]


def safe_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns a copy of an environment in which Python does not import from the working directory.

    Empty entries of PYTHONPATH stand for the working directory. They come from, for example,
    `PYTHONPATH=$PYTHONPATH:/x` with PYTHONPATH unset, and are dropped. Other entries are kept.
    """
    safe = {**environment, "PYTHONSAFEPATH": "1"}
    if "PYTHONPATH" in safe:
        safe["PYTHONPATH"] = os.pathsep.join(
            entry for entry in safe["PYTHONPATH"].split(os.pathsep) if entry
        )
        if not safe["PYTHONPATH"]:
            del safe["PYTHONPATH"]
    return safe


def remove_working_directory_from_path() -> None:
    """Removes the working directory from `sys.path`, and makes `os.environ` a `safe_environment`.

    Entries that are written out in PYTHONPATH are kept, and so are those of installed packages.
    """
    written_out = {
        os.path.realpath(entry)
        for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if entry
    }
    standard_library = next(
        (place for place, entry in enumerate(sys.path) if entry == os.path.dirname(os.__file__)), 0
    )
    with suppress(FileNotFoundError):  # a deleted working directory contains nothing to import
        here = os.path.realpath(os.getcwd())
        sys.path[:standard_library] = [
            entry
            for entry in sys.path[:standard_library]
            if os.path.realpath(entry) != here or here in written_out
        ]
    os.environ.update(safe := safe_environment())
    if "PYTHONPATH" not in safe:
        os.environ.pop("PYTHONPATH", None)
