"""Optional packages: imported where they are needed, with one clear message if one is missing."""

from collections.abc import Iterator
from contextlib import contextmanager

from rampcli.errors import UsageError

EXTRAS = {
    "huggingface_hub": "hub",
    "matplotlib": "plots",
    "pyarrow": "parquet",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "zstandard": "zstd",
}
"""The extra in pyproject.toml that installs each optional package."""


@contextmanager
def requiring(package: str, *, purpose: str) -> Iterator[None]:
    """Turns a failed import of an optional package into a usage error with its install command.

    Args:
        package: a key of `EXTRAS`, imported in the body of the `with` statement.
        purpose: what needs the package, as the subject of the message: "reading a.parquet".

    Raises:
        UsageError: the package is missing or cannot be imported.
    """
    try:
        yield
    except ImportError as error:
        if (error.name or package).partition(".")[0] != package:
            raise
        raise UsageError(
            f"{purpose} needs the package {package}: {error}",
            remedy=f"pip install 'rampcli[{EXTRAS[package]}]'",
        ) from error
