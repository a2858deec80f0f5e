"""The files of a composition as Hydra loads them, and what is wrong with their defaults lists."""

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rampcli.batch.quantities import MOST_NAMED, listed
from rampcli.config.groups import file_of, nearest_options, option_names, own_folders, some_of
from rampcli.config.yaml_files import SettingsFile, read_file
from rampcli.errors import UsageError
from rampcli.files import bundled


@dataclass(slots=True)
class LoadedFiles:
    """The files that Hydra has loaded, by the name that a defaults list has for them.

    Attributes:
        inlined: the primary file, if its defaults list is that of the composition.
    """

    among: tuple[Path, ...]
    files: dict[str, SettingsFile] = field(default_factory=dict)
    inlined: str | None = None

    def load(self, name: str) -> SettingsFile:
        """Reads a file, once."""
        if name not in self.files:
            path = file_of(name, self.among)
            assert path is not None
            self.files[name] = read_file(path, f"{name}.yaml")
        return self.files[name]

    def entries_with(self, name: str) -> list[str]:
        """Returns the places of the entries of defaults lists that name an option or a group."""
        places = []
        for path, file in self.files.items():
            parent = path.rpartition("/")[0]
            for line, entry in file.defaults or []:
                ((words, named),) = {entry: ""}.items() if isinstance(entry, str) else entry.items()
                group = words.split()[-1].partition("@")[0]
                options = named if isinstance(named, list) else [named]
                named = {group, *(f"{group}/{option}" for option in options)}
                named |= {f"{parent}/{one}" for one in named}
                if name in {one.lstrip("/") for one in named}:
                    places.append(f"{file.name}:{line}")
        return list(dict.fromkeys(places))

    def circle(self) -> dict[str, list[str]]:
        """Returns the files that name each other in a circle, each with the places that name it.

        Empty if an entry of the circle names its file by a reference.
        """
        places = {name: self.entries_with(name) for name in self.files}
        while True:
            naming = {one.rpartition(".yaml:")[0] for some in places.values() for one in some}
            inside = {
                name: kept
                for name, some in places.items()
                if name in naming
                and (kept := [one for one in some if one.rpartition(".yaml:")[0] in places])
            }
            if inside == places:
                return inside
            places = inside


@contextmanager
def as_usage_errors(read: LoadedFiles) -> Iterator[None]:
    """Turns Hydra's errors of a composition into ours, with the places that they are about."""
    from hydra.errors import HydraException, MissingConfigException, OverrideParseException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except MissingConfigException as error:
        raise _missing(str(error.missing_cfg_file), read) from error
    except OverrideParseException as error:
        group = error.override.partition("=")[0].lstrip("+~")
        raise UsageError(
            f"cannot read {group} as the name of a group",
            keys=(group,),
            remedy="a name of the letters a to z and A to Z, digits, _ and -",
        ) from error
    except (HydraException, OmegaConfBaseException, ValueError, AssertionError) as error:
        text = str(error) or str(error.__cause__ or "")
        for pattern, message, remedy in _MESSAGES:
            if match := re.search(pattern, text):
                named = match[1].partition("=")[0]
                options = option_names(named.partition("@")[0], read.among)
                raise UsageError(
                    message.format(*match.groups()),
                    keys=(named,),
                    remedy=remedy.format(*match.groups(), options=some_of(options)),
                    set_by=read.entries_with(named.partition("@")[0]),
                ) from error
        raise UsageError(
            f"the defaults lists of {_lists(read)} do not compose",
            remedy="--info defaults-tree with fewer entries, which shows how they do",
        ) from error
    except RecursionError as error:
        raise circle_of(read) from error


def circle_of(read: LoadedFiles) -> UsageError:
    """Returns the error for defaults lists that lead back to where they began."""
    circle = read.circle()
    files = [f"{name}.yaml" for name in circle]
    places = sorted({place for some in circle.values() for place in some})
    if len(files) == 1:
        message = f"the defaults list of {files[0]} names the file itself"
        remedy = "the same list without this entry"
    else:
        names = listed(files, most=MOST_NAMED) if files else _lists(read)
        message = f"the defaults lists of {names} name each other in a circle"
        remedy = "the lists without the entry that leads back"
    return UsageError(message, remedy=remedy, set_by=places)


def _lists(read: LoadedFiles) -> str:
    names = [one.name for one in read.files.values() if one.defaults]
    return listed(names, most=MOST_NAMED) if names else "these files"


_MESSAGES = (
    (
        r"Could not override '([^']+)'",
        "the defaults list overrides {0}, which no defaults list has",
        "the entry without override",
    ),
    (
        r"Could not delete '([^']+)'",
        "~{0} deletes nothing: no defaults list has {0}",
        "the same words without it",
    ),
    (
        r"(\S+) appears more than once in the final defaults list",
        "{0} is in the defaults lists twice",
        "override {0}: OPTION in place of the second entry, or {0}@SECTION: OPTION",
    ),
    (
        r"Multiple values for ([^\s]+?)\.\s",
        "the defaults lists choose two options of {0}",
        "override {0}: OPTION in place of the second entry",
    ),
    (
        r"You must specify '([^']+)'",
        "an option of {0} must be chosen: its entry in a defaults list is ???",
        "{0}={options}",
    ),
    (
        r"\(override (\S+?)=",
        "the defaults list overrides {0} in a file that another entry names by a reference",
        "the entry in the file above",
    ),
)
"""What Hydra says of a composition that fails, what we say of it, and what to do."""


def no_primary(name: str, among: Sequence[Path]) -> UsageError:
    """Returns the error for a primary file that no folder has, such as the path of a file."""
    path = Path(f"{name}.yaml")
    own = [str(one) for one in among if one != bundled("conf")]
    message = f"there is no file {path}"
    remedy = f"a file {path} in {' or '.join(own)}" if own else "--config-path with its folder"
    if os.path.isfile(path):  # unlike Path.is_file, it takes any text
        message = f"{path} is a path, and --config-name takes a name in a folder that is searched"
        remedy = shlex.join(("--config-path", str(path.parent), "--config-name", path.stem))
    return UsageError(message, remedy=remedy, set_by=(f"--config-name {name}",))


def _missing(name: str, read: LoadedFiles) -> UsageError:
    group, _, option = name.rpartition("/")
    places = read.entries_with(name)
    if not group:
        return UsageError(
            f"there is no file {name}.yaml",
            remedy=f"a file {name}.yaml in {' or '.join(map(str, own_folders(read.among)))}",
            set_by=places,
        )
    leads_out = ".." in name.split("/")
    nearest = (
        "the name of a file in the folders that are searched"
        if leads_out
        else nearest_options(group, option, read.among)
    )
    return UsageError(
        f"there is no {name}.yaml, which a defaults list names",
        remedy=nearest if isinstance(nearest, str) else str(nearest).replace("=", ": "),
        set_by=places,
    )
