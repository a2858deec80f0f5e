import pytest

from rampcli.cli.words import join_split_lists
from rampcli.errors import UsageError


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["model.rampup_batch_size=[256,", "128,", "50000000]"], ["model.rampup_batch_size=[256, 128, 50000000]"]),
        (["a=1", "b=[1,", "2]", "c=3"], ["a=1", "b=[1, 2]", "c=3"]),
        (["b=[1,2]", "c=3"], ["b=[1,2]", "c=3"]),
        ([], []),
    ],
)
def test_a_list_that_the_shell_split_is_one_word(typed, meant):
    assert join_split_lists(typed) == meant


def test_a_bracket_that_is_never_closed_is_said():
    with pytest.raises(UsageError, match="never closed"):
        join_split_lists(["b=[1,", "2", "c=3"])
