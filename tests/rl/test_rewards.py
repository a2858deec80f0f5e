import pytest

from rampcli.rl.rewards import BUILT_IN, ExampleError
from rampcli.settings.rewards import BUILT_IN_REWARDS


def test_every_name_of_a_built_in_function_has_one():
    assert tuple(BUILT_IN) == BUILT_IN_REWARDS


@pytest.mark.parametrize(
    ("name", "response", "example", "reward"),
    [
        ("exact_match", " 42\n", {"answer": "42"}, 1.0),
        ("exact_match", "42", {"answer": 42}, 1.0),
        ("exact_match", "42", {"response": " 42"}, 1.0),
        ("exact_match", "42", {"answer": None, "response": "42"}, 1.0),
        ("exact_match", "42", {"answer": "41", "response": "42"}, 0.0),
        ("exact_match", "4 2", {"answer": "42"}, 0.0),
        ("contains", "it is 42.", {"answer": "42 "}, 1.0),
        ("contains", "it is 4 2.", {"answer": "42"}, 0.0),
        ("length", "four", {"length": 4}, 0.0),
        ("length", "four", {"length": 6}, -2.0),
        ("length", "fünf", {"length": 1}, -3.0),
    ],
)
def test_the_reward_of_a_built_in_function(name, response, example, reward):
    assert BUILT_IN[name]("prompt", response, example) == reward


@pytest.mark.parametrize(
    ("name", "example", "field"),
    [
        ("exact_match", {}, "answer"),
        ("exact_match", {"answer": ["42"]}, "answer"),
        ("contains", {"answer": True}, "answer"),
        ("contains", {"response": 0.5}, "response"),
        ("length", {}, "length"),
        ("length", {"length": "4"}, "length"),
        ("length", {"length": -1}, "length"),
        ("length", {"length": 10**400}, "length"),
    ],
)
def test_an_example_without_the_field_is_refused_by_the_name_of_the_field(name, example, field):
    with pytest.raises(ExampleError, match=field):
        BUILT_IN[name]("prompt", "42", example)
