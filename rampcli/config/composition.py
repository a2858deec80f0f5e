"""Composes files of settings: Hydra does it, with defaults lists, packages and overrides of groups.

The bundled options of a recipe need none of these, and are put in Hydra's order without it.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from rampcli.config.defaults_lists import LoadedFiles, as_usage_errors, circle_of, no_primary
from rampcli.config.groups import ROOT, Primary, file_of, folders
from rampcli.config.layers import placed
from rampcli.config.reading import SEARCH_PATH, quoted
from rampcli.config.references import Unresolved, check_readable, has_reference, resolved
from rampcli.config.yaml_files import DEFAULTS, HYDRA, SELF, SettingsFile, read_file
from rampcli.errors import UsageError, shown
from rampcli.files import bundled
from rampcli.settings.by_key import flatten, nest
from rampcli.words import format_of, unwrapped

BUNDLED = "pkg://rampcli.conf"
"""How Hydra's users name conf/ in `hydra.searchpath`."""
_PRIMARY = "_rampcli_primary_"
"""Name of the node in Hydra's ConfigStore that is composed. Its defaults list has the primary."""
_HYDRAS_OWN = (
    *("job_logging", "hydra_logging", "help", "hydra_help", "output", "sweeper", "launcher"),
)
"""Hydra's groups for what it does in applications that it starts. They are not loaded."""
_ONE_AT_A_TIME = threading.RLock()
"""Hydra composes with a state of the whole process."""


@dataclass(frozen=True, kw_only=True)
class ComposedFile:
    """A file in the defaults list, in its place.

    Attributes:
        file: the file as it was read.
        package: the section that its settings are in; empty for the whole tree.
        choice: the choice that it follows from, directly or by the defaults list of another file;
            None for a file that the primary's defaults lists name.
    """

    file: SettingsFile
    package: str
    choice: str | None = None

    @cached_property
    def leaves(self) -> Mapping[str, tuple[int, Any]]:
        """The line and the value of each setting, by dotted key without the section `WRAPPER`."""
        return {unwrapped(key): value for key, value in self.placed.items()}

    @cached_property
    def placed(self) -> Mapping[str, tuple[int, Any]]:
        """The same, by dotted key in Hydra's tree."""
        return self.file.leaves(self.package)

    @property
    def is_bundled(self) -> bool:
        """Whether it is in conf/."""
        return self.file.path.is_relative_to(bundled("conf"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Composition:
    """What Hydra has composed from files.

    Attributes:
        files: in the order in which they are merged. The last one that sets a key applies.
        values: the merged values by dotted key, without the section `WRAPPER`. References
            are as they were written.
        hidden: values that do not apply, by key in Hydra's tree. Files may set a key both inside
            and outside of the section `WRAPPER`, such as `training.seed` and `seed`. The value of
            the later file applies, and the other one is hidden.
        defaults: the defaults list as Hydra has it, by path, package and parent.
        tree: the lines of the tree of defaults.
        choices: the option of each group.
    """

    files: tuple[ComposedFile, ...]
    values: Mapping[str, Any]
    hidden: Mapping[str, Any] = field(default_factory=dict)
    defaults: tuple[tuple[str, str, str], ...] = ()
    tree: tuple[str, ...] = ()
    choices: Mapping[str, str | None] = field(default_factory=dict)


def composed(
    primary: Primary,
    recipe: Mapping[str, str],
    chosen: Mapping[str, str],
    *,
    explains: bool = False,
) -> Composition:
    """Composes the files of a primary and of choices.

    Args:
        recipe: options of a recipe by bundled group. They stand in place of the primary's own.
        chosen: options that the user chooses by group, as they are typed:
            `{"optim": "mine", "+exp": "a", "~rl": ""}`.

    Raises:
        UsageError: a file is missing or wrong, or the defaults lists contradict each other.
    """
    choices = {**recipe, **chosen}
    is_plain = all(
        group in _default_options() and file_of(f"{group}/{option}", folders()) is not None
        for group, option in choices.items()
    )
    if primary.is_bundled and is_plain and not explains:
        return _in_order(choices)
    with _ONE_AT_A_TIME:
        return _by_hydra(primary, recipe, chosen)


@cache
def _default_options() -> dict[str, str]:
    """Returns the default option of each group, in the order of conf/config.yaml."""
    entries = read_file(bundled("conf") / f"{ROOT}.yaml", f"{ROOT}.yaml").defaults or []
    return {
        group: option
        for _, entry in entries
        if isinstance(entry, dict)
        for group, option in entry.items()
    }


def _in_order(choices: Mapping[str, str]) -> Composition:
    """Composes bundled files as Hydra does: choices replace the defaults in their places."""
    files = []
    for group, option in {**_default_options(), **choices}.items():
        name = f"{group}/{option}.yaml"
        file = read_file(bundled("conf") / name, name)
        package = group if file.package is None else ""
        choice = group if group in choices else None
        files.append(ComposedFile(file=file, package=package, choice=choice))
    values = {key: value for one in files for key, (_, value) in one.leaves.items()}
    return Composition(files=tuple(files), values=values)


def further_folders(primary: Primary) -> tuple[Path, ...]:
    """Returns the folders that the primary file names in `hydra.searchpath`.

    Raises:
        UsageError: the file is wrong, or an entry is not a folder.
    """
    path = None if primary.name is None else file_of(primary.name, primary.folders)
    if path is None:
        return ()
    file = read_file(path, f"{primary.name}.yaml")
    leaves = file.leaves()
    line, entries = leaves.get(SEARCH_PATH, (0, []))
    if format_of(leaves) is not None:  # which names the folder of its container
        return ()
    own = {key: value for key, (_, value) in leaves.items()}
    return folders_named(entries, place=f"{SEARCH_PATH} ({file.name}:{line})", among=own)


def folders_named(
    entries: Any, *, place: str, among: Mapping[str, Any] | None = None
) -> tuple[Path, ...]:
    """Returns the folders that entries of `hydra.searchpath` name.

    Args:
        entries: `file://FOLDER`, `FOLDER` or `pkg://rampcli.conf`, which is searched anyway.
        among: the values that references in them may name, by dotted key.

    Raises:
        UsageError: an entry is another package, or no folder, or its reference has no value.
    """
    if has_reference(entries):
        with placed(place):
            values = resolved({**(among or {}), SEARCH_PATH: entries})[0]
            entries = values.get(SEARCH_PATH, entries)
            if isinstance(entries, Unresolved):
                raise entries.error
    found = []
    for entry in entries if isinstance(entries, list) else [entries]:
        path = Path(str(entry).removeprefix("file://")).expanduser()
        if entry == BUNDLED:
            continue
        if "://" in str(path) or not path.is_dir():
            raise UsageError(
                f"{SEARCH_PATH}: {shown(entry)} is not a folder",
                keys=(SEARCH_PATH,),
                remedy=f"an existing folder, file:///FOLDER, or {BUNDLED}",
                set_by=(place,),
            )
        found.append(path)
    return tuple(found)


_reading = LoadedFiles(())
"""The files of the composition that goes on, for `_source`."""


def _by_hydra(
    primary: Primary, recipe: Mapping[str, str], chosen: Mapping[str, str]
) -> Composition:
    from hydra import compose, initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    global _reading
    read = _reading = LoadedFiles(primary.folders)
    scheme = _source().scheme()
    options = {**_default_options(), **recipe} if primary.is_root else {}
    entries: list[Any] = [{group: option} for group, option in options.items()]
    if primary.name is not None and not entries:
        entries = _entries_of(primary.name, read)
    overrides = [{f"override {HYDRA}/{group}": None} for group in _HYDRAS_OWN]
    node = {
        DEFAULTS: [*entries, SELF, *overrides],
        HYDRA: {
            "searchpath": [f"{scheme}://{index}" for index, _ in enumerate(read.among)],
            "output_subdir": None,
        },
    }
    with (
        as_usage_errors(read),
        _state_kept(),
        initialize_config_dir(str(Path(__file__).parent), job_name="rampcli", version_base="1.3"),
        _only_own_nodes(),
    ):
        ConfigStore.instance().store(name=_PRIMARY, node=node)
        # All settings are checked later, with better messages than those of the schema.
        ConfigStore.instance().store(group="rampcli", name="schema", package="_global_", node={})
        loader = GlobalHydra.instance().config_loader()
        # Folders of plugins would come before those of the user.
        searched = loader.get_search_path().get_path()
        searched[:] = [one for one in searched if one.provider in ("hydra", "schema")]

        def known_with(words: Sequence[str]) -> Collection[str]:
            # This mode leaves out choices that are not made yet.
            probed = loader.compute_defaults_list(_PRIMARY, [*words], RunMode.MULTIRUN)
            known: Collection[str] = probed.overrides.known_choices
            return known

        words = _typed(chosen)
        try:
            found = loader.compute_defaults_list(_PRIMARY, words, RunMode.RUN)
        except HydraException:
            if (mended := _with_plus(chosen, known_with)) == words:
                raise
            words = mended
            found = loader.compute_defaults_list(_PRIMARY, words, RunMode.RUN)
        tree = OmegaConf.to_container(compose(_PRIMARY, overrides=words), resolve=False)
        names = [one.config_path.removesuffix(".yaml") for one in found.defaults]
        if read.inlined is not None and names.count(read.inlined) > 1:
            raise circle_of(read)
    assert isinstance(tree, dict)
    tree_values = flatten({str(key): value for key, value in tree.items()})
    choice_of = {
        f"{_group_of(word)}/{option}": word
        for word, options in {**options, **chosen}.items()
        for option in options.strip("[]").split(",")
    }
    for key, override in found.overrides.override_metadata.items():
        if (choice := choice_of.get(override.containing_config_path)) is not None:
            option = found.overrides.override_choices[key]
            choice_of.setdefault(f"{_group_of(key)}/{option}", choice)
    files = []
    for one in found.defaults:
        name = one.config_path.removesuffix(".yaml")
        if name in read.files:
            if one.parent in choice_of:
                choice_of.setdefault(one.config_path, choice_of[one.parent])
            choice = choice_of.get(one.config_path)
            file = read.files[name]
            files.append(ComposedFile(file=file, package=one.package or "", choice=choice))
    root = ROOT if primary.is_root else read.inlined or "<root>"
    values, hidden = _merged(tree_values, files)
    return Composition(
        files=tuple(files),
        values=values,
        hidden=hidden,
        defaults=tuple(
            (one.config_path, one.package or "", (one.parent or "").replace(_PRIMARY, root))
            for one in found.defaults
            if one.config_path.removesuffix(".yaml") in read.files
        ),
        tree=tuple(_tree_of(found.defaults_tree, read.inlined)),
        choices={
            group: option
            for group, option in reversed(found.overrides.known_choices.items())
            if not group.startswith(f"{HYDRA}/")
        },
    )


@contextmanager
def _state_kept() -> Iterator[None]:
    """Lets Hydra start anew, and restores its state of the process, which an application may need.

    The state consists of the loader that has started, the version base and OmegaConf's resolvers.
    """
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.singleton import Singleton
    from hydra.version import VersionBase
    from omegaconf.basecontainer import BaseContainer

    kinds: tuple[Any, ...] = (GlobalHydra, VersionBase)
    kept = {kind: Singleton._instances.pop(kind) for kind in kinds if kind in Singleton._instances}
    resolvers = dict(BaseContainer._resolvers)
    # Hydra removes its state itself, if it has started.
    GlobalHydra.instance()
    try:
        yield
    finally:
        for kind in kinds:
            Singleton._instances.pop(kind, None)
        Singleton._instances.update(kept)
        BaseContainer._resolvers = resolvers


@contextmanager
def _only_own_nodes() -> Iterator[None]:
    """Leaves only Hydra's own nodes in the ConfigStore: those of an application are not ours."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    kept = store.repo
    store.repo = {"hydra": kept["hydra"]}
    try:
        yield
    finally:
        store.repo = kept


def _merged(
    values: Mapping[str, Any], files: Sequence[ComposedFile]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns `values` and `hidden` of a `Composition`.

    Args:
        values: merged by Hydra, by key in its tree.
        files: in the order in which they are merged.
    """
    last = {key: index for index, one in enumerate(files) for key in one.placed}
    applying = {unwrapped(key): key for key in sorted(values, key=lambda key: last.get(key, -1))}
    merged = {inside: values[applying[inside]] for inside in map(unwrapped, values)}
    return merged, {key: one for key, one in values.items() if applying[unwrapped(key)] != key}


def _entries_of(name: str, read: LoadedFiles) -> list[Any]:
    """Returns the defaults list of a composition that begins with a primary file.

    It is the list of the file, so that its overrides precede those of other files. The name of the
    file stands for its own settings. A file in a group keeps its list, whose names are relative.

    Raises:
        UsageError: no folder has the file.
    """
    if file_of(name, read.among) is None:
        raise no_primary(name, read.among)
    if "/" in name:
        return [name]
    read.inlined = name
    entries = [one for _, one in read.load(name).defaults or []]
    overrides = [one for one in entries if isinstance(one, dict) and "override " in str(one)]
    before = [name if one == SELF else one for one in entries if one not in overrides]
    return [*before, *([] if SELF in entries else [name]), *overrides]


def _group_of(word: str) -> str:
    return word.lstrip("+~").partition("@")[0]


def _typed(choices: Mapping[str, str]) -> list[str]:
    return [f"{key}={_as_value(value)}" if value else key for key, value in choices.items()]


def _with_plus(
    choices: Mapping[str, str], known_with: Callable[[Sequence[str]], Collection[str]]
) -> list[str]:
    """Returns choices as overrides of Hydra's, with a `+` for groups that no defaults list has.

    Here the `+` may be left out or typed in any case, as it has no second meaning. `known_with`
    returns the groups of the defaults lists with some overrides.
    """
    deleted = _typed({key: one for key, one in choices.items() if key.startswith("~")})
    wanted = {
        key.lstrip("+"): f"{key.lstrip('+')}={_as_value(value)}"
        for key, value in choices.items()
        if not key.startswith("~")
    }
    known = {*known_with([])} if wanted else set()
    added = {key for key in wanted if f"+{key}" in choices} - known
    if not {*wanted} - added <= known:
        known |= {*known_with([f"+{wanted[key]}" for key in added])} - added
    return [*(word if key in known else f"+{word}" for key, word in wanted.items()), *deleted]


def _as_value(option: str) -> str:
    """Returns the name of an option, or a list of names, in Hydra's grammar.

    Names are quoted, so that they may have any letters, or look like numbers.
    """
    if option.startswith("[") and option.endswith("]"):
        return f"[{','.join(map(quoted, filter(None, option[1:-1].split(','))))}]"
    return quoted(option)


@cache
def _source() -> Any:
    """Returns the kind of source from which Hydra loads our files and the user's.

    Unlike Hydra's own, it reads plain YAML only, and leaves out what a file says of Hydra itself.
    """
    from hydra.core.object_type import ObjectType
    from hydra.core.plugins import Plugins
    from hydra.plugins.config_source import ConfigResult, ConfigSource
    from omegaconf import OmegaConf

    class SettingsSource(ConfigSource):
        """One of the folders that are searched; its path is the number of the folder."""

        @staticmethod
        def scheme() -> str:
            return "rampcli"

        @property
        def folder(self) -> Path:
            return _reading.among[int(self.path)]

        def load_config(self, config_path: str) -> ConfigResult:
            file = _reading.load(config_path.removesuffix(".yaml"))
            for key, (line, value) in file.leaves().items():
                with placed(f"{key} ({file.name}:{line})"):
                    check_readable(value, key)
            leaves = {key: one for key, (_, one) in file.leaves().items()}
            settings = {k: one for k, one in leaves.items() if k.partition(".")[0] != HYDRA}
            is_inlined = config_path.removesuffix(".yaml") == _reading.inlined
            entries = [] if is_inlined else [one for _, one in file.defaults or []]
            defaults = {DEFAULTS: entries} if entries else {}
            return ConfigResult(
                provider=self.provider,
                path=self.full_path(),
                config=OmegaConf.create(nest(settings) | defaults),
                header={"package": file.package},
            )

        def available(self) -> bool:
            return self.folder.is_dir()

        def is_group(self, config_path: str) -> bool:
            return (self.folder / config_path).is_dir()

        def is_config(self, config_path: str) -> bool:
            return file_of(config_path.removesuffix(".yaml"), [self.folder]) is not None

        def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
            found: list[str] = []
            for path in (self.folder / config_path).iterdir():
                self._list_add_result(
                    found, f"{config_path}/{path.name}", path.name, results_filter
                )
            return sorted({*found})

    Plugins.instance().register(SettingsSource)
    return SettingsSource


def _tree_of(tree: Any, inlined: str | None) -> Iterator[str]:
    """Yields the lines of Hydra's tree of defaults, below the primary file."""
    if inlined is None:
        yield from _tree_lines(tree, 0)
        return
    yield f"{inlined}:"
    for line in _tree_lines(tree, 1):
        if line != f"  {SELF}":  # that of the composition, which has no settings
            yield line.replace(inlined, SELF) if line.strip() == inlined else line


def _tree_lines(node: Any, depth: int) -> Iterator[str]:
    one, children = getattr(node, "node", node), getattr(node, "children", None) or []
    name = one.get_config_path() if not one.is_virtual() else ""
    if name.startswith(f"{HYDRA}/"):
        return
    if name and name != _PRIMARY:
        is_group = hasattr(one, "group")
        text = f"{one.get_override_key()}: {one.get_name() or 'null'}" if is_group else name
        yield f"{'  ' * depth}{text}{':' * bool(children)}"
        depth += 1
    for child in children:
        if not (hasattr(child, "is_self") and child.is_self() and not depth):
            yield from _tree_lines(child, depth)
