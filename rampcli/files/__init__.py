"""Files from strangers, guarded folders, and the files that rampcli brings along."""

from functools import cache
from pathlib import Path


@cache
def bundled(name: str) -> Path:
    """Returns the folder `conf` or `recipes`: in the installed package (a wheel), or beside it."""
    package = Path(__file__).resolve().parent.parent
    installed = package / name
    # A checkout has rampcli/conf as well: a link, so that Hydra finds the package rampcli.conf.
    is_installed = installed.is_dir() and not installed.is_symlink()
    return installed if is_installed else package.parent / name
