"""Finds the groups and options of conf/ and of a user's folder, and checks the user's files."""

import difflib
import filecmp
import re
from pathlib import Path
from typing import Any

from rampcli import plain_yaml
from rampcli.bundled import bundled
from rampcli.config.unknown_keys import choices_in
from rampcli.errors import Remedy, UsageError, set_to, shown

LARGEST_FILE_BYTES = 20_000
_GLOBAL = re.compile(r"\s*#\s*@package\s+_global_\s*")
MOST_OFFERED = 4
"""Names that a remedy lists at most."""


def folders(config_dir: Path | None) -> list[Path]:
    """Returns the folders that are searched for options, in order."""
    return [bundled("conf")] if config_dir is None else [bundled("conf"), config_dir]


def group_names(config_dir: Path | None = None) -> set[str]:
    """Returns the names of all groups."""
    return {
        path.name
        for folder in folders(config_dir)
        for path in folder.iterdir()
        if path.is_dir() and path.name.isidentifier()
    }


def option_names(group: str, config_dir: Path | None = None) -> list[str]:
    """Returns the options of a group, sorted."""
    return sorted(
        {
            path.stem
            for folder in folders(config_dir)
            for path in (folder / group).glob("*.yaml")
            if path.is_file()
        }
    )


def first_of(names: list[str]) -> tuple[list[str], str]:
    """Returns the names that a remedy lists, all of a few or the first of many, and the rest."""
    if len(names) <= MOST_OFFERED:
        return names, ""
    return names[: MOST_OFFERED - 1], f" or ... ({len(names)} in all)"


def some_of(names: list[str]) -> str:
    """Returns names to choose from, as a remedy lists them."""
    offered, rest = first_of(names)
    return f"{' or '.join(offered)}{rest}"


def option_file(group: str, option: str, among: list[Path]) -> Path | None:
    """Returns the file of an option, or None if it does not exist."""
    return next(
        (path for folder in among if (path := folder / group / f"{option}.yaml").is_file()), None
    )


def nearest_options(group: str, name: str, config_dir: Path | None = None) -> Remedy:
    """Returns the remedy for a wrong option: the nearest options of its group."""
    ours = option_names(group)
    # The user's own options come first.
    options = sorted(option_names(group, config_dir), key=ours.__contains__)
    near = difflib.get_close_matches(name, options, n=2, cutoff=0.5)
    offered, rest = first_of([name] if name in options else near or options)
    if not offered:
        return f"a file {config_dir}/{group}/OPTION.yaml"
    return set_to(group, *offered, note=rest)


def check_option(group: str, option: Any, config_dir: Path | None) -> None:
    """Checks that an option exists and that its file holds plain settings.

    Raises:
        UsageError: it does not; names the option or the line of its file.
    """
    name = shown(option)
    path = option_file(group, name, folders(config_dir)) if Path(name).name == name else None
    if path is None:
        raise UsageError(
            f"{group}={name}: there is no conf/{group}/{name}.yaml",
            keys=(group,),
            remedy=choices_in(group, name, leave_out=option_names(group))
            or nearest_options(group, name, config_dir),
        )
    if not path.is_relative_to(bundled("conf")):
        _check_file(path, place=f"{group}/{name}.yaml", key=group)


def check_folder(config_dir: Path) -> None:
    """Checks that no option of a user's folder differs from a bundled option of the same name.

    Such a name would be ambiguous in a recipe.

    Raises:
        UsageError: names the file.
    """
    for group in sorted(group_names()):
        for option in option_names(group):
            ours, mine = (option_file(group, option, [folder]) for folder in folders(config_dir))
            if ours and mine and not filecmp.cmp(mine, ours, shallow=False):
                raise UsageError(
                    f"{mine}: {group}={option} is the name of a bundled option",
                    keys=(group,),
                    remedy=f"another name: {group}/my_{option}.yaml",
                    set_by=("--config-dir",),
                )


def is_global(text: str) -> bool:
    """Returns whether the first line that is not blank is `# @package _global_`, Hydra's header."""
    return _GLOBAL.fullmatch(next(filter(str.strip, text.splitlines()), "")) is not None


def _check_file(path: Path, *, place: str, key: str) -> None:
    """Checks a file of a user without constructing anything from it."""

    def refuse(reason: str, line: int | None = None) -> UsageError:
        at = place if line is None else f"{place}:{line}"
        return UsageError(
            f"{path}: {reason}", keys=(key,), remedy="plain KEY: VALUE lines", set_by=(at,)
        )

    try:
        text, root = plain_yaml.read(path, most_bytes=LARGEST_FILE_BYTES)
    except plain_yaml.NotPlainError as error:
        raise refuse(error.reason, error.line) from error
    for number, text_line in enumerate(text.splitlines(), start=1):
        comment, header, _ = text_line.partition("@package")
        if header and comment.lstrip().startswith("#") and not is_global(text):
            raise refuse("the only package header that is supported is # @package _global_", number)
    for name, _ in root.value:
        if name.value in ("defaults", "hydra"):
            raise refuse(
                f"{name.value} is not a setting; an option file holds settings only",
                name.start_mark.line + 1,
            )
