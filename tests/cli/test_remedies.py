"""Settings that an error offers mend what they are offered for."""

from collections.abc import Sequence

import pytest

from rampcli import llm
from rampcli.config.compose import apply_overrides, rl_word
from rampcli.config.reading import join_split_lists
from rampcli.errors import Report, UsageError, shown
from rampcli.planning.resolve import resolve
from rampcli.words.rl import RL_COMMAND, expand_words
from remedies import offers
from tests.cli.bad_inputs import BAD_INPUTS, BadInput


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
    report = Report()
    with report.noting():
        recipe = llm.from_factory(factory)
        words = join_split_lists(words, report=report)
        if command == "rl":
            recipe = apply_overrides(recipe, [rl_word(factory)], place=RL_COMMAND).config()
        resolve(apply_overrides(recipe, words, report=report), report=report)
    return report.errors


NEXT_ERROR = {
    "a model that does not divide over three tensor ranks": "the batch does not divide either",
    "a recipe with 10^30 nodes": "its argument is wrong, and no smaller number is its own",
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
            kept = [word for word in words if word.partition("=")[0].lstrip("+~") not in offer]
            mended = [*kept, *(f"{key}={shown(value)}" for key, value in offer.items())]
            found = errors_of(command, factory, mended)
            assert error.keys not in [other.keys for other in found], mended
            if len(errors) == 1 and row.title not in NEXT_ERROR and not has_placeholder(offer):
                assert [str(other) for other in found] == [], mended
