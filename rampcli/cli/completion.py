"""`rampcli completion`: commands, options, recipes, settings, groups and values, without hydra.

The shells' scripts run `rampcli __complete WORD...` with the words up to the cursor. The last word
is unfinished.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any

import typer

from rampcli.cli.base import INFO, VIEWS
from rampcli.errors import UsageError

SHELL_SCRIPTS = {
    shell: Path(__file__).with_name(f"completion.{shell}") for shell in ("bash", "zsh", "fish")
}
"""Files of the scripts by shell. They are passed to `eval`, or to `source` in fish."""


def completion(
    shell: Annotated[str, typer.Argument(help=f"Shell: {', '.join(SHELL_SCRIPTS)}.")],
) -> None:
    """Print the script that enables completion in a shell."""
    if shell not in SHELL_SCRIPTS:
        raise UsageError(
            f"there is no completion for {shell}",
            remedy=" or ".join(f"rampcli completion {name}" for name in SHELL_SCRIPTS),
        )
    typer.echo(SHELL_SCRIPTS[shell].read_text(encoding="utf-8"), nl=False)


def completions_of(words: Sequence[str], command: Any) -> list[str]:
    """Returns the completions of the last word.

    Args:
        words: words after `rampcli`. The last one is unfinished, and may be empty.
        command: the program as a click command.
    """
    *before, incomplete = words or [""]
    while before and before[0] in getattr(command, "commands", {}):
        command = command.commands[before.pop(0)]
    options = {
        name: option for option in command.params for name in option.opts if name.startswith("-")
    }
    among = _folders_in(before)
    waiting = options.get(before[-1]) if before else None
    if waiting is not None and not waiting.is_flag:
        found = _completed(waiting.name, incomplete, among)
        if found or waiting.name != "cfg":  # whose value may be left out
            return found
    given, equals, value = incomplete.partition("=")
    if equals and given in options:
        return [f"{given}={one}" for one in _completed(options[given].name, value, among)]
    if incomplete.startswith("-"):
        return [name for name in (*options, "--help") if name.startswith(incomplete)]
    if hasattr(command, "commands"):
        return [name for name in command.commands if name.startswith(incomplete)]
    arguments = [one.name for one in command.params if one.param_type_name == "argument"]
    if not arguments:
        return []
    number = sum(not word.startswith("-") for word in before)
    argument = arguments[min(number, len(arguments) - 1)]
    if argument in TAKE_PHASES:
        ending = "=" if argument == "overrides" else ""
        found = _in_phases(incomplete, before, ending=ending)
        return [*_completed(argument, incomplete, among), *found]
    return _completed(argument, incomplete, among)


def _completed(name: str, incomplete: str, among: Sequence[Path]) -> list[str]:
    """Returns completions of an option's value or of an argument; none if the shell offers files.

    Args:
        name: of the option or argument.
        incomplete: the unfinished word.
        among: the folders with groups.
    """
    if name in COMPLETERS:
        return COMPLETERS[name](incomplete, among)
    found: Any = NAMES.get(name, ())
    if isinstance(found, str):
        found = resolve_name(found)
    return [one for one in (found() if callable(found) else found) if one.startswith(incomplete)]


def _folders_in(before: Sequence[str]) -> tuple[Path, ...]:
    """Returns the folders that a command searches for groups, in order.

    Args:
        before: its words so far.
    """
    from rampcli.config.groups import folders

    values: dict[str, str] = {}
    for index, word in enumerate(before):
        name, equals, value = word.partition("=")
        following = before[index + 1] if index + 1 < len(before) else ""
        values |= {FOLDERS[name]: value if equals else following} if name in FOLDERS else {}
    paths = {name: Path(value).expanduser() for name, value in values.items() if value}
    if (file := paths.pop("factory", None)) and file.suffix == ".yaml":
        paths.setdefault("config_path", file.parent)
    return folders(**{name: path for name, path in paths.items() if path.is_dir()})


def words(incomplete: str, among: Sequence[Path] = ()) -> list[str]:
    """Returns completions of `KEY=VALUE` and `GROUP=OPTION`, also after `+` and `~`.

    Keys are completed up to the next dot, and nested groups up to the next `/`. After `=`, values
    are completed if they are known.

    Args:
        incomplete: the unfinished word.
        among: the folders with groups, or conf/ alone.
    """
    from rampcli.config.groups import group_names, option_names
    from rampcli.settings.by_key import foreign_words, settings

    sign = incomplete[: len(incomplete) - len(incomplete.lstrip("+~"))]
    key, equals, value = incomplete.removeprefix(sign).partition("=")
    if equals:
        known = settings() | foreign_words()
        group = key.partition("@")[0]
        values = (
            known[key].choices
            if key in known
            else option_names(group, among)
            if group in group_names(among)
            else []
        )
        # A list of options, or the values of a sweep.
        start = f"{sign}{key}={value[: max(value.rfind('['), value.rfind(',')) + 1]}"
        return [word for one in values if (word := f"{start}{one}").startswith(incomplete)]
    groups = [f"{sign}{name}" for name in _groups(key, among)]
    names = [*groups, *(f"{sign}{name}=" for name in settings() if "/" not in key)]
    return _up_to_next_dot(names, incomplete)


def _groups(incomplete: str, among: Sequence[Path]) -> list[str]:
    """Returns `GROUP=` for groups with options, and `GROUP/` for those with groups in them."""
    from rampcli.config.groups import GroupNames, folders, option_names

    parent, slash, _ = incomplete.rpartition("/")
    inside = [one for folder in among or folders() if (one := folder / parent).is_dir()]
    found = []
    for name in GroupNames(tuple(inside)):
        group = f"{parent}{slash}{name}"
        found += [f"{group}="] if option_names(group, among) else []
        below = tuple(path for one in inside if (path := one / name).is_dir())
        found += [f"{group}/"] if {*GroupNames(below)} else []
    return [name for name in found if name.startswith(incomplete)]


def primaries(incomplete: str, among: Sequence[Path]) -> list[str]:
    """Returns the primary files, without `.yaml`, that begin with a word.

    Of the bundled files, `config` is one.
    """
    from rampcli.config.groups import ROOT
    from rampcli.files import bundled

    parent, slash, _ = incomplete.rpartition("/")
    mine = [one for one in among if one != bundled("conf")]
    names = {
        f"{parent}{slash}{path.stem}" for one in mine for path in (one / parent).glob("*.yaml")
    }
    return sorted(name for name in {ROOT, *names} if name.startswith(incomplete))


def sections(incomplete: str, _: Sequence[Path]) -> list[str]:
    """Returns the sections and settings that begin with a word, up to the next dot."""
    from rampcli.settings.by_key import settings

    return [name.removesuffix(".") for name in _up_to_next_dot([*settings()], incomplete)]


def rl_words(incomplete: str, among: Sequence[Path] = ()) -> list[str]:
    """Returns completions of MaxText's words for `rampcli rl`, and those of `words`."""
    from rampcli.words.rl import ALL_PAIRS, BARE_WORDS

    bare = [f"{word}=" for word in BARE_WORDS]
    all_pairs = f"micro_batch_size={ALL_PAIRS}"
    return [
        word
        for word in (*bare, *([all_pairs] if "=" in incomplete else []))
        if word.startswith(incomplete) and word != incomplete
    ] + words(incomplete, among)


def keys(incomplete: str, among: Sequence[Path] = ()) -> list[str]:
    """Returns completions of the key of a setting, or of a whole override once it contains `=`."""
    from rampcli.settings.by_key import foreign_words, settings

    if "=" in incomplete:
        return words(incomplete, among)
    return _up_to_next_dot([*settings(), *foreign_words()], incomplete)


def _in_phases(incomplete: str, before: Sequence[str], *, ending: str) -> list[str]:
    """Returns completions of `phases.NAME.KEY`, with the names of the words before.

    Args:
        ending: what follows a key.
    """
    from rampcli.settings.by_key import may_change, settings
    from rampcli.settings.phase_keys import PHASES, UNTIL, phase_key, split_phase_key

    if not incomplete.startswith(f"{PHASES}."):
        return [word for word in (f"{PHASES}.",) if word.startswith(incomplete)]
    name, dot, inside = incomplete.removeprefix(f"{PHASES}.").partition(".")
    if not dot:
        parts = (split_phase_key(word.partition("=")[0]) for word in before)
        names = dict.fromkeys(part[0] for part in parts if part is not None)
        return [f"{PHASES}.{one}." for one in names if one.startswith(name)]
    if "=" in inside:
        is_setting = inside.partition("=")[0] in settings()
        return [phase_key(name, word) for word in words(inside)] if is_setting else []
    keys = filter(may_change, settings())
    return _up_to_next_dot(
        [phase_key(name, f"{key}{ending}") for key in (UNTIL, *keys)], incomplete
    )


TAKE_PHASES = ("overrides", "keys")
"""Arguments that take settings of phases."""
NAMES: dict[str, str | Sequence[str]] = {
    "factory": "rampcli.llm:recipe_names",
    "recipe": "rampcli.llm:recipe_names",
    "ramp": "rampcli.planning.published_ramps:published_ramps",
    "average": "rampcli.batch.averages:AVERAGES",
    "cfg": VIEWS,
    "info": INFO,
    "shell": [*SHELL_SCRIPTS],
}
"""What an option or argument can be, by its name: words, or the place of words or of a function."""
COMPLETERS: dict[str, Callable[[str, Sequence[Path]], list[str]]] = {
    "package": sections,
    "overrides": words,
    "rl_overrides": rl_words,
    "keys": keys,
    "what_if": words,
    "config_name": primaries,
}
"""Functions that complete the value of an option or argument, also from the folders with groups."""
FOLDERS = {
    **dict.fromkeys(("--config-dir", "-cd"), "config_dir"),
    **dict.fromkeys(("--config-path", "-cp"), "config_path"),
    **dict.fromkeys(("--factory", "-f"), "factory"),
}
"""Options that name a folder with groups, or a primary file in one."""


def _up_to_next_dot(names: Sequence[str], incomplete: str) -> list[str]:
    """Returns the names that begin with a word, without duplicates, cut after the next dot.

    So sections are offered before the settings in them.
    """
    matching = [name for name in names if name.startswith(incomplete)]
    cut = [
        name[: name.index(".", len(incomplete)) + 1] if "." in name[len(incomplete) :] else name
        for name in matching
    ]
    return list(dict.fromkeys(cut)) if len(set(cut)) > 1 else matching
