"""Finds the groups and options of conf/ and of a user's folders."""

import difflib
import filecmp
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rampcli.errors import Remedy, UsageError, set_to, shown
from rampcli.files import bundled
from rampcli.settings.unknown_keys import choices_in

ROOT = "config"
"""The bundled primary file, conf/config.yaml."""
LONGEST_FILE_NAME = 200
"""Characters of the name of a file that is looked for."""
MOST_OFFERED = 4
"""Names that a remedy lists at most."""
_PART = re.compile(r"\w[\w-]*")


@dataclass(frozen=True, slots=True)
class GroupNames(Collection[str]):
    """The names of all groups: folders, such as `optim` or `training/gpt3`.

    Folders are looked up, so that a large folder of the user is not walked through. Iterating
    yields the groups at the top.
    """

    among: tuple[Path, ...]

    def __contains__(self, name: object) -> bool:
        parts = str(name).split("/")
        if len(str(name)) > LONGEST_FILE_NAME:
            return False
        return all(map(_PART.fullmatch, parts)) and any(
            (folder / str(name)).is_dir() for folder in self.among
        )

    def __iter__(self) -> Iterator[str]:
        names = {
            path.name
            for folder in self.among
            for path in folder.iterdir()
            if _PART.fullmatch(path.name) and path.name != "__pycache__" and path.is_dir()
        }
        return iter(sorted(names))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def folders(config_dir: Path | None = None, config_path: Path | None = None) -> tuple[Path, ...]:
    """Returns the folders that are searched for groups and files, in order.

    Args:
        config_dir: the user's further folder, of `--config-dir`.
        config_path: the user's folder of the primary file, of `--config-path`. It comes first.
    """
    return tuple(filter(None, (config_path, bundled("conf"), config_dir)))


def own_folders(among: Sequence[Path]) -> list[Path]:
    """Returns the folders of the user among those that are searched, or conf/ if there are none."""
    return [one for one in among if one != bundled("conf")] or [*folders()]


@dataclass(frozen=True, kw_only=True, slots=True)
class Primary:
    """What is composed: a primary file, and the folders that are searched.

    Attributes:
        name: of the primary file, without `.yaml`; None for no file.
        config_path: the folder of the primary file, searched before conf/; or None.
        config_dir: a folder that is searched after conf/; or None.
        further: folders that are searched last.
        sweeps: whether the runs of a sweep are composed, for which Hydra has settings of their own.
    """

    name: str | None = ROOT
    config_path: Path | None = None
    config_dir: Path | None = None
    further: tuple[Path, ...] = ()
    sweeps: bool = False

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders that are searched, in order."""
        return (*folders(self.config_dir, self.config_path), *self.further)

    @property
    def is_bundled(self) -> bool:
        """Whether only bundled files can be chosen."""
        return self.is_root and self.folders == folders()

    @property
    def is_root(self) -> bool:
        """Whether the primary file is the bundled one, whose options recipes choose."""
        return self.name == ROOT and self.config_path is None


def group_names(among: Sequence[Path] = ()) -> GroupNames:
    """Returns the names of all groups in some folders, or in conf/."""
    return GroupNames(tuple(among) or folders())


def option_names(group: str, among: Sequence[Path] = ()) -> list[str]:
    """Returns the options of a group, sorted, in some folders or in conf/."""
    return sorted(
        {
            path.stem
            for folder in among or folders()
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


def file_of(name: str, among: Sequence[Path]) -> Path | None:
    """Returns the file of a name such as `optim/mine`, or None if no folder has it.

    A name that leads out of the folders has no file.
    """
    parts = name.split("/")
    if not name or len(name) > LONGEST_FILE_NAME or any(part in ("", ".", "..") for part in parts):
        return None
    return next((path for one in among if (path := one / f"{name}.yaml").is_file()), None)


def nearest_options(group: str, name: str, among: Sequence[Path] = ()) -> Remedy:
    """Returns the remedy for a wrong option: the nearest options of its group."""
    head, slash, _ = name.rpartition("/")
    found = option_names(f"{group}/{head}", among) if slash and ".." not in head else []
    if inside := [f"{head}/{one}" for one in found]:
        near = difflib.get_close_matches(name, inside, n=2, cutoff=0.5)
        offered, rest = first_of(near or inside)
        return set_to(group, *offered, note=rest)
    ours = option_names(group)
    # The user's own options come first.
    options = sorted(option_names(group, among), key=ours.__contains__)
    near = difflib.get_close_matches(name, options, n=2, cutoff=0.5)
    offered, rest = first_of([name] if name in options else near or options)
    if not offered:
        return f"a file {own_folders(among)[-1]}/{group}/OPTION.yaml"
    return set_to(group, *offered, note=rest)


def check_option(group: str, option: Any, among: Sequence[Path] = ()) -> None:
    """Checks that an option exists.

    Raises:
        UsageError: there is no such option.
    """
    for one in option if isinstance(option, list) else [option]:
        name = shown(one)
        if file_of(f"{group}/{name}", among or folders()) is None:
            raise UsageError(
                f"{group}={name}: there is no conf/{group}/{name}.yaml",
                keys=(group,),
                remedy=choices_in(group, name, leave_out=option_names(group))
                or nearest_options(group, name, among),
            )


def check_options_folder(config_dir: Path) -> None:
    """Checks that no option of a user's folder differs from a bundled option of the same name.

    Such a name would be ambiguous in a recipe.

    Raises:
        UsageError: names the file.
    """
    for group in group_names():
        for option in option_names(group):
            mine, ours = (one / group / f"{option}.yaml" for one in (config_dir, bundled("conf")))
            if mine.is_file() and not filecmp.cmp(mine, ours, shallow=False):
                raise UsageError(
                    f"{mine}: {group}={option} is the name of a bundled option",
                    keys=(group,),
                    remedy=f"another name: {group}/my_{option}.yaml",
                    set_by=("--config-dir",),
                )
