"""The pictures of `--plot`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rampcli.errors import UsageError, typeable
from rampcli.plugins.extras import requiring

PICTURES = (".svg", ".png")


def check_picture(path: Path | None) -> Path | None:
    """Returns the path of a picture, or None if none is asked for.

    Raises:
        UsageError: its name has another suffix, or it cannot be a file there.
    """
    if path is None:
        return None
    if path.suffix not in PICTURES:
        remedy = path.with_suffix(".svg") if path.name else "plan.svg"
        raise UsageError(
            f"--plot {path}: the name ends in neither {' nor '.join(PICTURES)}",
            remedy=f"--plot {typeable(str(remedy))}",
        )
    if not path.parent.is_dir():
        raise UsageError(
            f"--plot {path}: there is no folder {path.parent}",
            remedy=f"--plot {typeable(path.name)}",
        )
    if path.is_dir():
        raise UsageError(
            f"--plot {path} is a folder", remedy=f"--plot {typeable(str(path / 'plan.svg'))}"
        )
    with requiring("matplotlib", purpose=f"--plot {path}"):
        import matplotlib  # noqa: F401
    return path


@contextmanager
def writing_picture(path: Path) -> Iterator[None]:
    """Turns an OSError of a block that writes a picture into a UsageError.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"--plot {path}: {error.strerror or error}", remedy="--plot plan.svg"
        ) from error
