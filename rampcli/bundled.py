"""Finds conf/ and recipes/: inside the installed package (a wheel), or beside it (a checkout)."""

from pathlib import Path


def bundled(name: str) -> Path:
    """The folder `conf` or `recipes` that belongs to this installation."""
    package = Path(__file__).resolve().parent
    installed = package / "_bundled"
    return (installed if installed.is_dir() else package.parent) / name
