"""Extensions: parts of the program that a user adds, such as an optimiser.

An extension is a function with a name. Its module registers it when it is imported
(`rampcli.extend`). The module is imported if `--factory` or the environment variable
`RAMPCLI_EXTENSIONS` names it, or if an entry point of an installed package has the extension's
name. A run directory cannot name code: it holds the names of extensions only.
"""

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rampcli.errors import RampcliError, UsageError, printable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

EXTENSIONS_VARIABLE = "RAMPCLI_EXTENSIONS"
"""Environment variable with the files and modules that register extensions, separated by `:`.

Commands, workers, trackers and jobs import them. A module that registers an extension is added.
"""
OPTIMIZER_KEY, DECAY_STYLE_KEY = "optim.optimizer", "schedule.decay_style"
FAMILY_KEY, SOURCE_KEY = "model.family", "data.source"
OBSERVERS_KEY, TRACKERS_KEY, REWARD_KEY = "logging.observers", "logging.trackers", "rl.reward"
ENTRY_POINTS = {
    OPTIMIZER_KEY: "rampcli.optimizers",
    DECAY_STYLE_KEY: "rampcli.decay_styles",
    FAMILY_KEY: "rampcli.models",
    SOURCE_KEY: "rampcli.data_sources",
    OBSERVERS_KEY: "rampcli.observers",
    TRACKERS_KEY: "rampcli.trackers",
    REWARD_KEY: "rampcli.rewards",
}
"""Groups of entry points by the setting that names an extension."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Extension:
    """A registered function.

    Attributes:
        name: value of that setting.
        function: the user's function.
        settings: dataclass of its own settings, or None if it has none.
        reads: fields of its section that it reads, or None if it does not say.
    """

    key: str
    name: str
    function: Callable[..., Any]
    settings: type | None = None
    reads: tuple[str, ...] | None = None

    @property
    def section(self) -> str:
        """Prefix of its own settings, for example `optim.lion.`."""
        return f"{section_of(self.key)}{self.name}."

    @property
    def source(self) -> str:
        """File or module that registers it."""
        module = self.function.__module__
        if module == "__main__":
            return getattr(sys.modules[module], "__file__", None) or module
        return _FILES.get(module, module)


REGISTERED: dict[tuple[str, str], Extension] = {}
_FILES: dict[str, str] = {}
"""Files that have been imported, by the names of their modules."""


def section_of(key: str) -> str:
    """Returns the section of a setting with its dot: `optim.` for `optim.optimizer`."""
    return f"{key.rpartition('.')[0]}."


def register(extension: Extension) -> None:
    """Makes an extension known, also to the processes that this one starts.

    Raises:
        UsageError: another function has the name.
    """
    known = REGISTERED.get((extension.key, extension.name))
    if known is not None and known.function.__module__ != extension.function.__module__:
        raise UsageError(
            f"{extension.source} registers {extension.key}={extension.name}, and so does"
            f" {known.source}",
            keys=(extension.key,),
            remedy="another name",
        )
    REGISTERED[extension.key, extension.name] = extension
    if (source := extension.source) not in (*_trusted(), "__main__"):
        os.environ[EXTENSIONS_VARIABLE] = os.pathsep.join((*_trusted(), source))


def is_extension(function: Callable[..., Any]) -> bool:
    """Returns whether a function has been registered."""
    return any(known.function is function for known in REGISTERED.values())


def find(key: str, name: str) -> Extension | None:
    """Returns the extension of a name, or None. Imports the modules that may register it.

    Raises:
        UsageError: a module cannot be imported, or does not register what its entry point says.
    """
    if (key, name) not in REGISTERED:
        load_trusted()
    if (key, name) not in REGISTERED and (point := entry_point(key, name)) is not None:
        import_source(point.module)
        if (key, name) not in REGISTERED:
            raise UsageError(
                f"the entry point {name} in {point.group} names {point.value}, which does not"
                f" register {key}={name}",
                keys=(key,),
                remedy=f"the decorator of `rampcli.extend` for {key}",
            )
    return REGISTERED.get((key, name))


def entry_point(key: str, name: str) -> "EntryPoint | None":
    """Returns the entry point of an installed package for an extension, or None."""
    return next((point for point in _entry_points(key) if point.name == name), None)


@cache
def _entry_points(key: str) -> "EntryPoints":
    """Returns the entry points for a setting. It takes tens of milliseconds to read them."""
    from importlib.metadata import entry_points

    return entry_points(group=ENTRY_POINTS[key])


def names(key: str) -> list[str]:
    """Returns the names of the extensions that a setting can name, sorted.

    Raises:
        UsageError: a module that `RAMPCLI_EXTENSIONS` names cannot be imported.
    """
    load_trusted()
    of_packages = (point.name for point in _entry_points(key))
    return sorted({*of_packages, *(name for of, name in REGISTERED if of == key)})


def load_trusted() -> None:
    """Imports the files and modules that `RAMPCLI_EXTENSIONS` names.

    Raises:
        UsageError: one of them cannot be imported.
    """
    for source in _trusted():
        import_source(source)


def _trusted() -> list[str]:
    return [
        source for source in os.environ.get(EXTENSIONS_VARIABLE, "").split(os.pathsep) if source
    ]


def is_file(source: str) -> bool:
    """Returns whether a source is a Python file, not a module."""
    return source.endswith(".py")


def import_source(source: str) -> ModuleType:
    """Imports a file that ends in `.py`, or a module, unless that has been done.

    The folder of a file is importable, after all other folders: it cannot replace a package.

    Raises:
        UsageError: it does not exist, or raises an error.
    """
    with reporting_errors(source):
        if is_file(source):
            return _load_file(Path(source).expanduser())
        return importlib.import_module(source)


@contextmanager
def reporting_errors(source: str) -> Iterator[None]:
    """Turns any error of a user's code into a UsageError that names its line."""
    try:
        yield
    except RampcliError:
        raise
    except Exception as error:
        raise UsageError(
            f"{source}: {_describe(error, source)}",
            remedy="pip install its package, or PYTHONPATH=FOLDER for a module of yours"
            if isinstance(error, ModuleNotFoundError)
            else None,
        ) from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(
            f"there is no file {path}",
            remedy=f"rampcli recipes --new {path.stem}, which writes a recipe of this name",
        )
    file = str(path.resolve())
    name = f"{path.stem}_{sha256(file.encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    if (folder := str(path.resolve().parent)) not in sys.path:
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    _FILES[name] = file
    writes_nothing, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.dont_write_bytecode = writes_nothing
    return module


def _describe(error: Exception, source: str) -> str:
    """Returns an error in one line, with the last line of the user's file that led to it."""
    line = None
    if isinstance(error, SyntaxError):
        line = error.lineno
    else:
        for frame, number in traceback.walk_tb(error.__traceback__):
            if os.path.basename(frame.f_code.co_filename) == os.path.basename(source):
                line = number
    place = "" if line is None else f"line {line}: "
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return printable(f"{place}{type(error).__name__}: {message}")
