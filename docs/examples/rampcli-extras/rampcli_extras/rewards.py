"""A reward for short responses: `rl.reward=shorter`."""

from collections.abc import Mapping
from typing import Any

from rampcli.extend import reward


@reward("shorter")
def shorter(prompt: str, response: str, example: Mapping[str, Any]) -> float:  # noqa: ARG001
    """Returns minus the number of characters of the response."""
    return -float(len(response))
