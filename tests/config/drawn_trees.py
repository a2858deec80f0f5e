"""Folders of Hydra configs and words of a command line, as Hypothesis draws them.

A tree has groups three levels deep, and most files have a defaults list.
"""

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from rampcli.cli.base import Base
from rampcli.config.compose import apply_overrides, primary_stack
from rampcli.config.layers import COMMAND_LINE, DEFAULT
from rampcli.config.values import typed
from rampcli.errors import ErrorReport, UsageError
from rampcli.settings.by_key import settings
from tests.config.drawn_leaves import KEYS, Values, bundled_keys, rendered
from tests.config.drawn_references import (
    ANYWHERE,
    BUNDLED,
    HOMES,
    PACKAGES,
    Reference,
    packages_of,
    references,
)
from tests.config.plain_hydra import (
    MISSING,
    REFUSALS,
    config_of,
    expected_places,
    values_of,
    written,
)


def compose_ours(
    folder: Path, config_name: str | None, words: Sequence[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns what rampcli composes, before the plan and its checks, by dotted key.

    Args:
        folder: as `--config-dir`.
        config_name: as `--config-name`: a config of the folder, or None for our own.
        words: of the command line, without options.

    Returns:
        The typed value of every setting, and the places of those that are set. A place has the form
        that `expected_places` describes.

    Raises:
        UsageError: the tree does not compose.
    """
    report = ErrorReport()
    base = Base(config_name=config_name or "config", config_dir=folder)
    stack = apply_overrides(primary_stack(base.primary()), words, config_dir=folder, report=report)
    report.close()
    typed = {word.lstrip("+").partition("=")[0]: word.lstrip("+") for word in words}
    values = {key: stack.entry(key).value for key in settings()}
    places = {
        key: f"{typed[key]} ({COMMAND_LINE})" if entry.source == COMMAND_LINE else entry.place
        for key in settings()
        if (entry := stack.entry(key)).source != DEFAULT
    }
    return values, places


FORMS = ("config", "group", "group", "optional", "absent", "list", "null", MISSING)
"""Forms of an entry of a defaults list. An absent one is optional and has no file."""


@dataclass(frozen=True)
class Tree:
    """A folder of configs and a command line.

    Attributes:
        files: text by path in the folder.
        config_name: the primary config of the folder, or None for our own.
        words: of the command line.
        features: what the tree contains, for statistics.
    """

    files: Mapping[str, str]
    config_name: str | None
    words: tuple[str, ...]
    features: frozenset[str] = field(compare=False)

    def __str__(self) -> str:
        """Returns the files and the command line."""
        files = [f"--- {name}\n{text}" for name, text in self.files.items()]
        return "\n".join(["", *files, f"--config-name {self.config_name}", *self.words])

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """Shows Hypothesis's example."""
        printer.text(str(self))


@dataclass(frozen=True, kw_only=True)
class Composed:
    """What Hydra and rampcli compose of a tree, by dotted key.

    Attributes:
        expected: what Hydra composes, as the types of our settings.
        unresolved: the same as it is written, with references.
        expected_places: see `expected_places`.
        values: our settings.
        places: places of those that are set.
    """

    tree: Tree
    expected: Mapping[str, Any]
    unresolved: Mapping[str, Any]
    expected_places: Mapping[str, str]
    values: Mapping[str, Any]
    places: Mapping[str, str]


def composed_by_both(tree: Tree) -> Composed | None:
    """Returns what is composed of a tree, or None if Hydra refuses it or a key is no setting.

    Raises:
        UsageError: we refuse the tree, and Hydra does not.
    """
    where = tree.config_name, tree.words
    with written(tree.files) as folder:
        try:
            config = config_of(folder, *where)
            plain = values_of(config, resolve=True)
            expected = {key: typed(key, value) for key, value in plain.items()}
        except (*REFUSALS, UsageError):
            return None
        values, places = compose_ours(folder, *where)
        return Composed(
            tree=tree,
            expected=expected,
            unresolved=values_of(config, resolve=False),
            expected_places=expected_places(folder, *where),
            values=values,
            places=places,
        )


@st.composite
def drafts(draw: st.DrawFn) -> Tree:
    """Draws trees, some of which Hydra refuses."""
    config_name = draw(st.sampled_from((None, None, "mine", "mine", "mine", "exp/top")))
    has_base = config_name != "mine" or draw(st.integers(0, 2)) > 0
    drawing = _Drawing(draw, has_base=has_base)
    if config_name is not None:
        drawing.add_primary(config_name, has_base=has_base)
    drawing.add_choices(may_add=config_name != "exp/top")
    choices = [*draw(st.permutations(drawing.words))]
    # A setting that is given twice is refused here, unlike by Hydra.
    values = [
        *{word.lstrip("+").partition("=")[0]: word for word in drawing.assignments()}.values()
    ]
    return Tree(
        drawing.files,
        config_name,
        tuple(draw(st.sampled_from(([*choices, *values], [*values, *choices])))),
        frozenset(drawing.features | drawing.values.features),
    )


class _Drawing:
    """A tree that is being drawn from its primary config on, so that each file is included.

    Attributes:
        groups: group defaults by key, in the order in which Hydra composes them.
        overridable: those that overrides of the file may name. Hydra reads defaults lists from the
            last entry to the first, so they are those before the file. None: all.
        once: files with group defaults, which Hydra refuses to compose twice.
        values: draws the values, and knows which keys are set.
        mentioned: keys that may be set.
        missing: words that set what is ??? in a file.
    """

    def __init__(self, draw: st.DrawFn, *, has_base: bool) -> None:
        self.draw = draw
        self.files: dict[str, str] = {}
        self.words: list[str] = []
        self.missing: list[str] = []
        self.features: set[str] = set()
        self.headers: dict[str, str | None] = {}
        self.groups: dict[str, Reference] = {}
        self.overridable: list[str] | None = None
        self.once: set[str] = set()
        if has_base:
            self.groups = {group: Reference(group, None, "", "") for group in BUNDLED}
        self.values = Values(draw, present=bundled_keys() if has_base else frozenset())
        self.mentioned = set(bundled_keys() | bundled_keys("batch=nemo_gpt3", "optim=nemo_adam"))

    def chance(self, percent: int) -> bool:
        return self.draw(st.integers(0, 99)) >= 100 - percent

    def pick(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def add_primary(self, name: str, *, has_base: bool) -> None:
        base = posixpath.dirname(name)
        header = "_global_" if base else self.pick(None, None, "_global_")
        entries = [f"- {'/' if base else ''}config"] if has_base else []
        if not has_base:
            self.features.add("own primary")
            for group in self.draw(st.sets(st.sampled_from(sorted(BUNDLED)), max_size=4)):
                entries.append(f"- {group}: {self.pick(*BUNDLED[group])}")
                self.groups[group] = Reference(group, None, "", "")
        entries += self.entries("", base, tuple(HOMES))
        if "data" in self.groups and self.chance(30):
            self.features.add("interpolated option")
            self.include("special/stdlib_too")
            self.include("special/mock_too")
            entries.append(f"- optional {'/' if base else ''}special: ${{data}}_too")
        self.write(name, header, [*entries, *self.overrides("", base)], "")

    def include(self, name: str) -> None:
        """Draws a file of `HOMES`, unless the tree has it. Bundled files need no drawing."""
        if name not in HOMES or f"{name}.yaml" in self.files:
            return
        self.files[f"{name}.yaml"] = ""
        before = len(self.groups)
        home, base = HOMES[name], posixpath.dirname(name)
        entries: list[str] = []
        if home == ANYWHERE:
            if name == "intervals/often" and self.header(name) is None and self.chance(30):
                self.include("intervals/rare")
                entries = ["- rare"] if self.header("intervals/rare") is None else []
        elif base != "special":
            names = tuple(HOMES)
            entries = self.entries(home, base, names[names.index(name) + 1 :])
            entries += self.overrides(home, base)
        if base in BUNDLED and home and self.chance(75):
            self.features.add("extends a bundled option")
            entries.insert(0, f"- {BUNDLED[base][-1]}")
        self.write(name, self.header(name), entries, home)
        if len(self.groups) > before:
            self.once.add(name)

    def header(self, name: str) -> str | None:
        """Returns the package in the header of a file, or None."""
        if name not in self.headers:
            home, base = HOMES[name], posixpath.dirname(name)
            if home == ANYWHERE:
                options = (None, None, "checkpoint")
            elif base == "special":
                options = ("_global_",)
            elif home == "":
                options = ("_global_",) * 5 + (None,) if base else (None, "_global_")
            elif home == base.replace("/", "."):
                options = (None, None, home, f"_global_.{home}")
            else:
                options = (home, home, f"_global_.{home}", None)
            self.headers[name] = self.pick(*options)
        return self.headers[name]

    def references(self, name: str, parent: str, base: str, *, is_group: bool) -> list[Reference]:
        return references(name, self.header(name), parent=parent, base=base, is_group=is_group)

    def entries(self, parent: str, base: str, names: tuple[str, ...]) -> list[str]:
        """Draws the entries of a defaults list, which include some of the named files."""
        lines = []
        for _ in range(self.draw(st.integers(0, 3))):
            usable = [name for name in names if self.is_usable(name)]
            if not usable:
                break
            name = self.pick(*usable)
            form = self.pick(*FORMS)
            found = self.references(name, parent, base, is_group=form != "config")
            found = [one for one in found if form == "config" or one.key not in self.groups]
            if found:
                reference = self.pick(*found)
                lines.append(f"- {self.entry(form, reference, name)}")
        return lines

    def is_usable(self, name: str) -> bool:
        """Returns whether another entry may name a file. A file that is being drawn is empty."""
        is_open = self.files.get(f"{name}.yaml") == ""
        return not name.startswith("special") and name not in self.once and not is_open

    def entry(self, form: str, reference: Reference, name: str) -> str:
        package = f"@{reference.at}" if reference.at else "default package"
        self.features |= {f"entry: {form}", package}
        option = posixpath.basename(name)
        if form == "config":
            self.include(name)
            config = f"{reference.group.rstrip('/')}/{option}" if reference.group else option
            return config if reference.at is None else f"{config}@{reference.at}"
        if form == "absent":
            return f"optional {reference}: absent"
        self.groups[reference.key] = reference
        if form == "null":
            return f"{reference}: null"
        if form == MISSING:
            self.words.append(f"{reference.key}={option}")
        if form == "list":
            options = [one for one in self.options(reference) if one != option]
            others = self.draw(st.lists(st.sampled_from(options), max_size=1)) if options else []
            listed = [*others, option]
            for one in others:
                self.include(f"{reference.path}/{one}")
            self.include(name)
            return f"{reference}: [{', '.join(listed)}]"
        self.include(name)
        if form == MISSING:
            return f"{reference}: ???"
        return f"{'optional ' if form == 'optional' else ''}{reference}: {option}"

    def options(self, reference: Reference) -> list[str]:
        """Returns the options that a group default may have."""
        mine = [
            posixpath.basename(name)
            for name in HOMES
            if posixpath.dirname(name) == reference.path
            and self.is_usable(name)
            and reference.package(self.header(name)) in packages_of(name)
        ]
        bundled_ones = BUNDLED.get(reference.key, ()) if reference.at is None else ()
        return [*mine, *bundled_ones]

    def choose(self, reference: Reference) -> str | None:
        """Draws an option of a group default and adds its file."""
        options = self.options(reference)
        if not options:
            return None
        option = self.pick(*options)
        keys, above = [*self.groups], self.overridable
        self.overridable = keys[: keys.index(reference.key)] if reference.key in keys else keys
        self.include(f"{reference.path}/{option}")
        self.overridable = above
        return option

    def overrides(self, parent: str, base: str) -> list[str]:
        """Draws the overrides at the end of a defaults list."""
        lines = []
        for _ in range(self.pick(0, 0, 1, 1, 2)):
            keys = [*self.groups] if self.overridable is None else self.overridable
            if not keys:
                break
            key = self.pick(*keys, *(one for one in keys if "@" in one))
            reference = self.groups[key]
            written = [f"/{reference.path}"] if base else [reference.path]
            package = reference.package(None)
            ats = (None, "_group_", f"_global_.{package}" if package else "_global_")
            spelt = [Reference(group, at, parent, base) for group in written for at in ats]
            spelt = [one for one in spelt if one.key == key]
            option = self.choose(reference) if spelt else None
            if option is not None:
                option = "null" if key in ("rl", "launch") and self.chance(20) else option
                self.features |= {"override", *(["override with a package"] if "@" in key else [])}
                lines.append(f"- override {self.pick(*spelt)}: {option}")
        return lines

    def write(self, name: str, header: str | None, entries: list[str], home: str) -> None:
        """Draws the settings of a file and writes it."""
        lines = self.pick([], [], [""]) if header else []
        lines += [f"# @package {header}"] if header else []
        has_self = bool(entries) and self.pick(True, True, False)
        if has_self:
            at = self.pick(0, len(entries), self.draw(st.integers(0, len(entries))))
            self.features.add("_self_ last" if at == len(entries) else "_self_ before others")
            entries.insert(at, "- _self_")
        elif entries:
            self.features.add("no _self_")
        settings_of_file = rendered(self.draw, self.leaves(home))
        defaults = ["defaults:", *(f"  {entry}" for entry in entries)] if entries else []
        parts = [settings_of_file, defaults] if self.chance(15) else [defaults, settings_of_file]
        lines += [line for part in parts for line in part]
        self.files[f"{name}.yaml"] = "\n".join([*lines, ""])

    def leaves(self, home: str) -> dict[str, str]:
        """Draws settings of a package, by their keys in it."""
        if home == ANYWHERE:
            setting = settings()["checkpoint.every_steps"]
            self.mentioned |= {f"{package}.every_steps" for package in PACKAGES[home]}
            return {"every_steps": self.values.value(None, setting)}
        prefix = f"{home}." if home else ""
        keys = [key for key in KEYS if key.startswith(prefix)]
        chosen = self.draw(st.lists(st.sampled_from(keys), min_size=1, max_size=4, unique=True))
        self.mentioned |= set(chosen)
        leaves = {}
        for key in chosen:
            value = MISSING if self.chance(5) else self.values.value(key, settings()[key])
            if value == MISSING:
                self.features.add(MISSING)
                if key not in self.values.present or self.chance(20):
                    self.missing.append(f"++{key}={self.values.literal(settings()[key])}")
            if value not in (MISSING, "null"):
                self.values.present.add(key)
            leaves[key.removeprefix(prefix)] = value
        return leaves

    def add_choices(self, *, may_add: bool) -> None:
        """Draws words that choose options."""
        for _ in range(self.pick(0, 1, 1, 2) if may_add else 0):
            self.add_group()
        keys = st.sampled_from([*self.groups, ""])
        for key in self.draw(st.lists(keys, max_size=2, unique=True)):
            if key and not any(word.startswith(f"{key}=") for word in self.words):
                self.change_group(key)

    def assignments(self) -> list[str]:
        """Draws words that set or delete settings."""
        drawn = self.draw(st.lists(st.sampled_from(KEYS), max_size=4))
        return [*self.missing, *map(self.assignment, drawn)]

    def add_group(self) -> None:
        """Draws `+exp=a` or `+exp/deep@optim=[rates]`."""
        name = self.pick(*filter(self.is_usable, HOMES))
        found = self.references(name, "", "", is_group=True)
        found = [one for one in found if one.key not in self.groups]
        if not found:
            return
        reference, option = self.pick(*found), posixpath.basename(name)
        self.include(name)
        self.groups[reference.key] = reference
        self.features |= {"+group", "+group@package"} if reference.at else {"+group"}
        if reference.path.count("/") == 2:
            self.features.add("+group three levels deep")
        self.words.append(f"+{reference}={self.several(reference, option)}")

    def several(self, reference: Reference, option: str) -> str:
        """Returns an option, or draws a list that has another one before it."""
        other = self.choose(reference) if self.chance(15) else None
        if other in (None, option):
            return option
        self.features.add("list of options in a word")
        return f"[{other},{option}]"

    def change_group(self, key: str) -> None:
        """Draws `optim=mine`, `exp/deep@optim=rates` or `~launch`."""
        if self.chance(10):
            self.features.add("~group")
            self.words.append(f"~{key}")
        elif (option := self.choose(self.groups[key])) is not None:
            self.features |= {"group@package=", "group="} if "@" in key else {"group="}
            self.words.append(f"{key}={self.several(self.groups[key], option)}")

    def assignment(self, key: str) -> str:
        """Draws a word that sets or deletes a setting."""
        is_set = key in self.values.present
        if is_set and key not in self.values.referenced and self.chance(25):
            self.features.add("~key")
            return f"~{key}"
        value = self.values.value(key, settings()[key])
        prefix = "++"
        if not value.startswith("{"):
            adds = ("++",) if key in self.mentioned else ("+", "++")
            prefix = self.pick(*(("", "", "++") if is_set else adds))
        self.features |= {f"{prefix}key=", "interpolation in a word" if "${" in value else "word"}
        self.mentioned.add(key)
        return f"{prefix}{key}={value}"
