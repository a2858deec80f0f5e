"""Settings that an error offers mend what they are offered for."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

import rampcli
from error_text import as_text
from rampcli import llm
from rampcli.cli.main import app
from rampcli.config.compose import apply_overrides, rl_word
from rampcli.config.groups import group_names
from rampcli.config.reading import join_split_lists
from rampcli.errors import ErrorReport, UsageError, shown
from rampcli.planning.resolve import resolve
from rampcli.settings.by_key import find_setting
from rampcli.settings.phase_keys import PHASES
from rampcli.words.rl import BARE_WORDS, RL_COMMAND, expand_words
from remedies import offers
from tests.cli.bad_input_page import PAGE, answers
from tests.cli.bad_inputs import BAD_INPUTS, BadInput, give_files
from tests.cli.typed_remedies import (
    KEY,
    OPTION,
    PLACEHOLDER,
    PROSE,
    is_safe_in_a_shell,
    mended,
    replaces,
    runs,
    without,
    written_in,
)


def of_settings(row: BadInput) -> bool:
    """Returns whether a row is a recipe and settings that do not depend on files."""
    command, option, _, *words = [word for word in row.words if word != "--dry-run"]
    return (
        command in ("plan", "rl", "pretrain")
        and option in ("--factory", "-f")
        and not row.files
        and not any(word.startswith("-") for word in words)
    )


def has_placeholder(offer: dict[str, object]) -> bool:
    """Returns whether an offer names something that only the user knows, such as `PATH`."""
    return any(isinstance(value, str) and value.isupper() for value in offer.values())


def errors_of(command: str, factory: str, words: Sequence[str]) -> list[UsageError]:
    """Returns what a command says about its words, as data."""
    report = ErrorReport()
    with report.noting():
        recipe = llm.from_factory(factory)
        words = join_split_lists(words, report=report)
        if command == "rl":
            recipe = apply_overrides(recipe, [rl_word(factory)], place=RL_COMMAND).config()
        resolve(apply_overrides(recipe, words, report=report), report=report)
    return list(dict.fromkeys(report.errors))


NEXT_ERROR = {
    "a model that does not divide over three tensor ranks": "the batch does not divide either",
    "a recipe with 10^30 nodes": "its argument is wrong, and no smaller number is its own",
    "an increment that does not divide the ramp": "it does not divide over the ranks either",
    "null as an option of a group": "the first source needs a path",
    "a setting of reinforcement learning without it": "the recipe needs prompts, and has none",
}
"""Rows whose way out leads to another error, and why."""


@pytest.mark.parametrize(
    "row",
    [row for row in BAD_INPUTS if len(row.words) > 3 and of_settings(row)],
    ids=lambda row: row.title,
)
def test_settings_that_an_error_offers_mend_it_and_the_run_can_be_planned(row):
    command, _, factory, *words = [word for word in row.words if word != "--dry-run"]
    words = expand_words(words) if command == "rl" else words
    errors = errors_of(command, factory, words)
    for error in errors:
        for offer in offers(error):
            kept = [word for word in words if not any(replaces(key, word) for key in offer)]
            typed = [*kept, *(f"{key}={shown(value)}" for key, value in offer.items())]
            found = errors_of(command, factory, typed)
            assert error.keys not in [other.keys for other in found], typed
            if len(errors) == 1 and row.title not in NEXT_ERROR and not has_placeholder(offer):
                assert [str(other) for other in found] == [], typed


PACKAGE = Path(rampcli.__file__).parent
ROWS = [
    (row, error, remedy)
    for row, pairs in zip(BAD_INPUTS, answers(PAGE.read_text(encoding="utf-8")), strict=True)
    for error, remedy in pairs
]
"""Each wrong input with its errors and the ways out that they offer, as the page shows them."""
DRY = {
    **dict.fromkeys(("pretrain", "rl", "sweep"), "--dry-run"),
    **dict.fromkeys(("serve", "tune"), "--help"),
}
"""What keeps a command from training, from measuring or from serving for ever."""
TYPED = {
    run: (row, error)
    for row, error, remedy in ROWS
    for run in runs(remedy)
    if not PLACEHOLDER.search(run)
    and (run.startswith(("rampcli", "--")) or not (of_settings(row) or "--config-dir" in row.words))
}
"""Words to type that the test above does not try, each with one input to which they are offered."""


@pytest.mark.parametrize("run", TYPED)
def test_a_command_or_an_option_that_an_error_offers_is_accepted_and_ends_that_error(
    run, rampcli, tmp_path
):
    row, error = TYPED[run]
    give_files(row, tmp_path)
    refused = re.search(r"has no option (\S+)", error)
    kept = without(row.words, refused[1], has_value=True) if refused else row.words
    command, *words = mended(kept, run)
    extra = DRY.get(command)
    words += [extra] if extra and not {"--dry-run", "--cfg", "--help"} & {*words} else []
    ended = rampcli(command, *words)
    assert error[:300] not in as_text(ended.stderr)
    assert "has no option" not in ended.stderr
    assert "there is no command" not in ended.stderr


def options_of(command: Any) -> set[str]:
    """Returns the long options of a command and of those below it."""
    own = {name for param in command.params for name in param.opts}
    return own.union(*map(options_of, getattr(command, "commands", {}).values()))


SLURM_OPTIONS = (
    "--exclusive",
    "--me",
    "--nodes",
    "--ntasks",
    "--mpi",
    "--cpu-bind",
    "--gpus-per-task",
)
OTHER_OPTIONS = (*SLURM_OPTIONS, "--nproc-per-node", "--force-reinstall")
"""Options of Slurm, torchrun and pip that errors name."""
OPTIONS = options_of(typer.main.get_command(app)) | {"--help", *OTHER_OPTIONS}
OTHER_KEYS = {*group_names(), *BARE_WORDS, PHASES, "num_nodes", "num_gpus_per_node"}
"""Words before `=` that are no settings. The last two are arguments of recipes."""


@pytest.mark.parametrize("remedy", sorted({remedy for *_, remedy in ROWS}))
def test_settings_and_options_that_an_error_names_exist(remedy):
    assert [run for run in runs(remedy) if not is_safe_in_a_shell(run)] == []
    named = [key for key in KEY.findall(remedy) if key != PHASES]
    assert [key for key in named if find_setting(key) is None] == []
    assert {*OPTION.findall(remedy)} <= OPTIONS
    pages = re.findall(r"docs/[\w/-]+\.md", remedy)
    assert [page for page in pages if not (PACKAGE.parent / page).is_file()] == []
    typed = [word for run in runs(remedy) for word in shlex.split(run)]
    keys = [word.partition("=")[0] for word in typed if re.match(r"[a-z_][\w.]*=", word)]
    assert [key for key in keys if key not in OTHER_KEYS and find_setting(key) is None] == []


def commands_of(command: Any) -> set[str]:
    """Returns the names of a group's commands and of those below them."""
    below = getattr(command, "commands", {})
    return set(below).union(*map(commands_of, below.values()))


WRITTEN = {
    text: path.relative_to(PACKAGE).as_posix()
    for path in sorted(PACKAGE.rglob("*.py"))
    for text in written_in(path.read_text(encoding="utf-8"))
}
"""The text of each remedy that the program writes, with its module."""
COMMANDS = commands_of(typer.main.get_command(app))


def test_options_settings_and_commands_that_any_remedy_names_exist():
    wrong = {
        text: place
        for text, place in WRITTEN.items()
        if not {*OPTION.findall(text)} <= OPTIONS
        or any(find_setting(key) is None for key in KEY.findall(text))
        or not {*re.findall(r"rampcli ([a-z]+)", text)} <= COMMANDS | PROSE
    }
    assert wrong == {}
    assert len(WRITTEN) > 200
