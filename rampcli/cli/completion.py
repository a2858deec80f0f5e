"""`rampcli completion`: commands, options, recipes, settings, groups and values, without hydra.

The shells' scripts run `rampcli __complete WORD...` with the words up to the cursor. The last word
is unfinished.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from rampcli.errors import UsageError

SCRIPTS = {
    shell: Path(__file__).with_name(f"completion.{shell}") for shell in ("bash", "zsh", "fish")
}
"""Files of the scripts by shell. They are passed to `eval`, or to `source` in fish."""


def completion(
    shell: Annotated[str, typer.Argument(help=f"Shell: {', '.join(SCRIPTS)}.")],
) -> None:
    """Print the script that enables completion in a shell."""
    if shell not in SCRIPTS:
        raise UsageError(
            f"there is no completion for {shell}",
            remedy=" or ".join(f"rampcli completion {name}" for name in SCRIPTS),
        )
    typer.echo(SCRIPTS[shell].read_text(encoding="utf-8"), nl=False)


def candidates(words: Sequence[str], command: Any) -> list[str]:
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
    waiting = options.get(before[-1]) if before else None
    if waiting is not None and not waiting.is_flag:
        return COMPLETERS.get(waiting.name, _complete_files)(incomplete)
    if incomplete.startswith("-"):
        return [name for name in (*options, "--help") if name.startswith(incomplete)]
    if hasattr(command, "commands"):
        return [name for name in command.commands if name.startswith(incomplete)]
    arguments = [
        parameter.name
        for parameter in command.params
        if parameter.name not in {option.name for option in options.values()}
    ]
    if not arguments:
        return []
    given = sum(not word.startswith("-") for word in before)
    argument = arguments[min(given, len(arguments) - 1)]
    if argument in TAKE_PHASES:
        ending = "=" if argument == "overrides" else ""
        found = _in_phases(incomplete, before, ending=ending)
        return [*COMPLETERS[argument](incomplete), *found]
    return COMPLETERS.get(argument, _complete_files)(incomplete)


def recipes(incomplete: str) -> list[str]:
    """Returns the recipes that begin with a word."""
    from rampcli.llm import recipe_names

    return [name for name in recipe_names() if name.startswith(incomplete)]


def words(incomplete: str) -> list[str]:
    """Returns completions of `KEY=VALUE` and `GROUP=OPTION`.

    Keys are completed up to the next dot; after `=`, values are completed if they are known.
    """
    from rampcli.config.groups import group_names, option_names
    from rampcli.config.settings import foreign_words, settings

    key, equals, _ = incomplete.partition("=")
    if equals:
        known = settings() | foreign_words()
        values = (
            known[key].choices
            if key in known
            else option_names(key)
            if key in group_names()
            else []
        )
        return [word for value in values if (word := f"{key}={value}").startswith(incomplete)]
    names = [*sorted(group_names()), *settings()]
    return _up_to_next_dot([f"{name}=" for name in names], incomplete)


def rl_words(incomplete: str) -> list[str]:
    """Returns completions of MaxText's words for `rampcli rl`, and those of `words`."""
    from rampcli.words.rl import ALL_PAIRS, BARE_WORDS

    bare = [f"{word}=" for word in BARE_WORDS]
    all_pairs = f"micro_batch_size={ALL_PAIRS}"
    return [
        word
        for word in (*bare, *([all_pairs] if "=" in incomplete else []))
        if word.startswith(incomplete) and word != incomplete
    ] + words(incomplete)


def keys(incomplete: str) -> list[str]:
    """Returns completions of the key of a setting, or of a whole override once it contains `=`."""
    from rampcli.config.settings import foreign_words, settings

    if "=" in incomplete:
        return words(incomplete)
    return _up_to_next_dot([*settings(), *foreign_words()], incomplete)


def published(incomplete: str) -> list[str]:
    """Returns the published ramps that begin with a word."""
    from rampcli.planning.published_ramps import published_ramps

    return [name for name in published_ramps() if name.startswith(incomplete)]


def averages(incomplete: str) -> list[str]:
    """Returns the averages of weights that begin with a word."""
    from rampcli.batch.averages import KINDS

    return [kind for kind in KINDS if kind.startswith(incomplete)]


def shells(incomplete: str) -> list[str]:
    """Returns the shells that begin with a word."""
    return [name for name in SCRIPTS if name.startswith(incomplete)]


def _in_phases(incomplete: str, before: Sequence[str], *, ending: str) -> list[str]:
    """Returns completions of `phases.NAME.KEY`, with the names of the words before.

    Args:
        ending: what follows a key.
    """
    from rampcli.config.phase_keys import MAY_CHANGE, PHASES, UNTIL, phase_key, split_phase_key
    from rampcli.config.settings import settings

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
    keys = [key for key in settings() if not {key, f"{key.split('.')[0]}."}.isdisjoint(MAY_CHANGE)]
    return _up_to_next_dot(
        [phase_key(name, f"{key}{ending}") for key in (UNTIL, *keys)], incomplete
    )


def _complete_files(_: str) -> list[str]:
    """Returns no completions, so that the shell offers files."""
    return []


TAKE_PHASES = ("overrides", "keys")
"""Arguments that take settings of phases."""
COMPLETERS: dict[str, Callable[[str], list[str]]] = {
    "factory": recipes,
    "overrides": words,
    "rl_overrides": rl_words,
    "recipe": recipes,
    "ramp": published,
    "keys": keys,
    "what_if": words,
    "shell": shells,
    "average": averages,
}
"""Completion functions by the name of an option or argument."""


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
