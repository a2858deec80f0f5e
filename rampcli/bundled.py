"""Finds conf/ and recipes/: inside the installed package (a wheel), or beside it (a checkout)."""

from functools import cache
from pathlib import Path


@cache
def bundled(name: str) -> Path:
    """Returns the folder `conf` or `recipes` of this installation."""
    package = Path(__file__).resolve().parent
    installed = package / "_bundled"
    return (installed if installed.is_dir() else package.parent) / name
