import pytest
from rich.console import Console

from rampcli.report.tables import build_table, evaluation_line, validation_line


def printed(table, width: int = 200) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


@pytest.mark.parametrize(
    ("facts", "ending"),
    [
        ({}, "sampled reward 0.250, solved -"),
        ({"unscored": 0, "reason": None}, "sampled reward 0.250, solved -"),
        ({"unscored": 3, "reason": "no ones"}, "; 3 of their responses have no reward: no ones"),
        ({"unscored": 3, "reason": None}, "; 3 of their responses have no reward"),
    ],
)
def test_an_evaluation_says_how_many_responses_have_no_reward(facts, ending):
    row = {"greedy": 0.5, "greedy_solved": 0.5, "sampled": 0.25, "sampled_solved": None}
    assert evaluation_line([row | facts]).endswith(ending)


def test_numbers_are_aligned_to_the_right_and_named_columns_to_the_left():
    table = build_table("name", "figure", left=("name",))
    table.add_row("a", "1")
    table.add_row("long name", "1,000")
    assert printed(table).splitlines() == [
        "name       figure",
        "a               1",
        "long name   1,000",
    ]


def test_the_validations_of_several_corpora_are_told_apart():
    found = {
        "a": [{"loss": 2.75, "bits_per_byte": 2.75}, {"loss": 1.5, "bits_per_byte": None}],
        "b": [{"loss": 2.0, "bits_per_byte": 2.0}],
    }
    assert validation_line(found, digits=2) == "validation loss a 2.75 -> 1.50, b 2.00"
    assert validation_line(found, "bits_per_byte") == "bits per byte a 2.750 -> nan, b 2.000"


def test_the_averages_are_shown_behind_the_weights_from_their_first_validation_on():
    found = {
        "a": [{"loss": 2.75}, {"loss": 2.5, "ema_loss": 2.25}, {"loss": 1.5, "ema_loss": 1.25}],
        "b": [{"loss": 2.0, "ema_loss": None}],
    }
    assert validation_line(found, digits=2) == (
        "validation loss a 2.75 -> 2.50 -> 1.50, b 2.00; of the averaged weights a 2.25 -> 1.25"
    )
