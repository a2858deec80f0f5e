"""Creates expensive files once for all processes of a test run."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def make_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Returns a folder of this test run. The first process to ask for it makes it.

    Args:
        factory: pytest's `tmp_path_factory`.
        name: the folder's name, for example "undisturbed".
        make: fills the folder; it exists and is empty.
    """
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder, made = base / name, base / f"{name}.made"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            made.touch()
    return folder
