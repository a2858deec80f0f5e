"""Runs commands for another process, in forks of a process that has loaded torch.

The interpreter that runs this file imports rampcli: that of an environment with the wheel. Each
line of stdin is a request, and each line of stdout its answer.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path

from commands import Command


def search(folders: list[str]) -> None:
    """Imports from these folders first, as Python does from those of PYTHONPATH when it starts."""
    sys.path[:0] = folders


def answer() -> None:
    """Answers requests until stdin ends."""
    for line in sys.stdin:
        words, environment, folder = json.loads(line)
        folders = [name for name in environment.get("PYTHONPATH", "").split(os.pathsep) if name]
        command = Command(words, environment, Path(folder), prepare=partial(search, folders))
        output, errors = command.communicate()
        print(json.dumps([command.wait(), output, errors]), flush=True)


if __name__ == "__main__":
    answer()
