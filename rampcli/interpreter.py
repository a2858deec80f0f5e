"""How Python is started: never with the working directory on its path, where a stranger's `torch.py` may lie."""

import os
import sys
from collections.abc import Mapping


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
        safe["PYTHONPATH"] = os.pathsep.join(entry for entry in safe["PYTHONPATH"].split(os.pathsep) if entry)
        if not safe["PYTHONPATH"]:
            del safe["PYTHONPATH"]
    return safe


def leave_working_directory_out() -> None:
    """Apply `safe_environment` to this process, for everything that it imports and starts from now on."""
    os.environ.update(safe := safe_environment())
    if "PYTHONPATH" not in safe:
        os.environ.pop("PYTHONPATH", None)
