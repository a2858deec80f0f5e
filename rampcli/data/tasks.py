"""Built-in tasks with answers that can be verified.

Each index gives one prompt, so they never run out.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Task:
    """A kind of question about numbers.

    Attributes:
        answer: returns the answer from the numbers, each a text of the same number of digits. All
            answers have the same length.
    """

    numbers: int
    answer: Callable[[list[str]], str]


def _sum(numbers: list[str]) -> str:
    """Returns the sum with a leading zero if it has no more digits than the numbers."""
    return f"{sum(map(int, numbers)):0{len(numbers[0]) + 1}d}"


TASKS = {
    "sort": Task(1, lambda numbers: "".join(sorted(numbers[0]))),
    "reverse": Task(1, lambda numbers: numbers[0][::-1]),
    "add": Task(2, _sum),
}
"""Tasks by `data.task`."""
TASK_CHARACTERS = "0123456789+="
"""Characters of prompts and answers."""


def pose(name: str, *, digits: int, seed: int, index: int, attempt: int) -> tuple[str, str]:
    """Returns a prompt such as `31415926=` or `123+456=`, and its answer.

    Both depend on the arguments alone. Prompts are uniformly distributed.
    """
    task = TASKS[name]
    drawn = task.numbers * digits
    key = f"rampcli task {name} {digits} {seed} {index} {attempt}".encode()
    # Eight bytes more than the digits need make all of them equally likely to within 2^-64.
    number = int.from_bytes(hashlib.shake_256(key).digest(drawn // 2 + 9), "big") % 10**drawn
    text = f"{number:0{drawn}d}"
    numbers = [text[first : first + digits] for first in range(0, drawn, digits)]
    return f"{'+'.join(numbers)}=", task.answer(numbers)
