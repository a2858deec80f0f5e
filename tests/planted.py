"""Hostile modules planted in a folder."""

from pathlib import Path

MODULES = (
    *("sitecustomize", "hydra", "jinja2", "json", "numpy", "omegaconf"),
    *("rampcli", "rich", "tokenizers", "torch", "typer", "yaml"),
)
PACKAGES = ("hydra", "numpy", "rampcli")
MODULE = """\
with open({mark!r}, "wb") as file, open("/proc/self/cmdline", "rb") as command:
    file.write(command.read())
"""


def plant_modules(folder: Path, marks: Path | None = None) -> None:
    """Puts modules into a folder.

    A module that is imported leaves a file `ran.NAME` in `marks`, or else in the folder. It holds
    the command line of the process.
    """
    for name in MODULES:
        path = folder / (f"{name}/__init__.py" if name in PACKAGES else f"{name}.py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(MODULE.format(mark=str((marks or folder) / f"ran.{name}")))
