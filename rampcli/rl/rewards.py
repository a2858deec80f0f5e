"""Reward functions: how good a response is.

A reward function takes the prompt, the response and the example that the prompt comes from. It
returns a number; larger is better. A built-in one raises an `ExampleError` if the example lacks
what it needs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rampcli.files.records import MOST

Reward = Callable[[str, str, Mapping[str, Any]], float]
"""`(prompt, response, example) -> reward`. The example is a record of the data, as in its file."""
Pair = tuple[str, str, Mapping[str, Any]]
"""A prompt, a response to it, and the example that the prompt comes from."""


@dataclass(frozen=True, slots=True)
class Score:
    """The outcome of scoring a pair.

    Attributes:
        reward: the reward, finite; NaN if the pair could not be scored.
        reason: why the pair could not be scored, in one line; None if it was.
    """

    reward: float
    reason: str | None = None


class ExampleError(Exception):
    """An example lacks what a built-in reward function needs. The message names the field."""


def exact_match(_prompt: str, response: str, example: Mapping[str, Any]) -> float:
    """Returns 1 if the response is the example's answer, else 0.

    Whitespace around the response and around the answer does not count.
    """
    return float(response.strip() == _answer(example))


def contains(_prompt: str, response: str, example: Mapping[str, Any]) -> float:
    """Returns 1 if the example's answer occurs in the response, else 0.

    Whitespace around the answer does not count.
    """
    return float(_answer(example) in response)


def length(_prompt: str, response: str, example: Mapping[str, Any]) -> float:
    """Returns minus the distance, in characters, between the response and the wanted length.

    The wanted length is the example's field `length`.
    """
    wanted = example.get("length")
    if type(wanted) is not int or not 0 <= wanted <= MOST:
        raise ExampleError("the example has no length that is a whole number, 0 or more")
    return float(-abs(len(response) - wanted))


BUILT_IN: dict[str, Reward] = {"exact_match": exact_match, "contains": contains, "length": length}


def _answer(example: Mapping[str, Any]) -> str:
    """Returns the field `answer` of an example, or `response` if `answer` is missing.

    A whole number counts as its digits.
    """
    field = "response" if example.get("answer") is None else "answer"
    answer = example.get(field)
    if answer is None:
        raise ExampleError("the example has neither answer nor response")
    if type(answer) not in (str, int):
        raise ExampleError(f"the field {field} of the example is not text")
    return str(answer).strip()
