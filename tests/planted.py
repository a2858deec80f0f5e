"""Hostile modules planted in a folder."""

from pathlib import Path

MODULES = (
    "yaml.py",
    "torch.py",
    "sitecustomize.py",
    "jinja2.py",
    "numpy/__init__.py",
    "rampcli/__init__.py",
)


def plant_modules(folder: Path) -> None:
    """Puts modules into a folder. A module that is imported leaves a file `ran.NAME` there."""
    for name in MODULES:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"open({str(folder / f'ran.{Path(name).parts[0]}')!r}, 'w').close()\n")
