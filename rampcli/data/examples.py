"""Examples: prompts with responses or facts for rewards, from JSON lines or from a task.

A line has `prompt` and `response`, a list of `messages` (or `conversations`, as ShareGPT names
them), or `instruction`, `input` and `output`, as Alpaca names them.

An example is for training, for validation or for neither, by a hash of its prompt. So no prompt is
on two sides, whatever the order of the examples.
"""

import hashlib
import re
import shlex
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from json import JSONDecodeError
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rampcli.data.chat_template import ASSISTANT, USER, Message
from rampcli.data.texts import UTF_8_MARK, convert_remedy, wide_encoding
from rampcli.errors import UsageError, naming_setting, reading
from rampcli.files.guarded_folder import read_content
from rampcli.files.records import is_unicode, parse_unshaped
from rampcli.settings.config import Config
from rampcli.settings.data import DataConfig

LISTS = {"messages": ("role", "content"), "conversations": ("from", "value")}
"""Keys of a role and of a text in the messages of a list, by the key of the list."""
SHAREGPT_ROLES = {"human": USER, "gpt": ASSISTANT}
"""ShareGPT's names of roles."""
MOST_EXAMPLE_BYTES = 4 << 30
"""Largest file of examples, which is held in memory."""
LONGEST_LINE_BYTES = 16 << 20
ENDLESS = 2**40
"""Number of examples of a task, which never runs out."""
MOST_ATTEMPTS = 100_000
"""Most prompts that are drawn in search of one on the wanted side of the split."""
TRAINING_SIDE, VALIDATION_SIDE = 0, 1
_LINE = re.compile(rb"[^\n]+")
_HASHES = 2**64


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt.

    Attributes:
        prompt: what the user says first.
        response: text of the wanted response, or None if it is not given. The last one of a
            conversation.
        fields: the whole JSON object, for rewards, and `response` if it has another name there. A
            task gives `prompt` and `answer`.
        messages: all messages before the response, or None if the prompt is the only one.
    """

    prompt: str
    response: str | None
    fields: Mapping[str, Any]
    messages: tuple[Message, ...] | None = None


@dataclass(frozen=True, slots=True)
class Split:
    """Divides prompts by their hashes.

    Attributes:
        bounds: the first hash after each side, ascending: training, validation and the rest.
    """

    bounds: tuple[int, ...]

    @classmethod
    def of(cls, shares: Sequence[float]) -> "Split":
        """Returns the split into shares such as `data.split`."""
        up_to = list(accumulate(Fraction(str(share)) for share in shares))
        return cls(tuple(int(_HASHES * bound / up_to[-1]) for bound in up_to))

    def side_of(self, prompt: str) -> int:
        """Returns `TRAINING_SIDE`, `VALIDATION_SIDE` or another number."""
        digest = hashlib.sha256(prompt.encode()).digest()
        return bisect_right(self.bounds, int.from_bytes(digest[:8], "big"))

    def is_empty(self, side: int) -> bool:
        """Returns True if no prompt can be on a side."""
        return self.bounds[side] == (self.bounds[side - 1] if side else 0)


UNSPLIT = Split((_HASHES,))
"""Puts all prompts on the side `TRAINING_SIDE`."""


@dataclass(frozen=True, slots=True)
class FileExamples:
    """Examples of a file of JSON lines. A line is parsed when it is asked for.

    Attributes:
        name: the path.
        starts: offset of each example's line, int64 [examples].
        fingerprint: hash of the file and of the offsets.
    """

    name: str
    content: bytes
    starts: NDArray[np.int64]
    fingerprint: str

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> Example:
        line = _LINE.match(self.content, int(self.starts[index]))
        assert line is not None
        return _parse(line[0])

    def place(self, index: int) -> str:
        """Returns the path and the number of the line."""
        return _place(self.name, self.content, int(self.starts[index]))


def read_file_examples(path: Path, split: Split, *, needs_responses: bool) -> list[FileExamples]:
    """Reads a file of JSON lines; returns the examples on each side of a split.

    A line is an object with a prompt and a response, as `messages_of` reads them, and any other
    fields. Empty lines are left out.

    Args:
        needs_responses: refuse a line without a response. Otherwise, refuse conversations.

    Raises:
        UsageError: the file cannot be read, or a line is not an example; the message names it.
    """
    with reading(path, remedy="a file of JSON lines"):
        content = read_content(path, most_bytes=MOST_EXAMPLE_BYTES)
    if (encoding := wide_encoding(content)) is not None:
        raise UsageError(
            f"{path} is in {encoding}, not in UTF-8",
            remedy=convert_remedy(content, file=str(path)),
        )
    sides = [array("q") for _ in split.bounds]
    for line in _LINE.finditer(content, len(UTF_8_MARK) if content.startswith(UTF_8_MARK) else 0):
        if line[0].isspace():
            continue
        try:
            example = _parse(line[0])
            if needs_responses and example.response is None:
                raise ValueError("there is no response")
            if not needs_responses and example.messages is not None:
                raise ValueError("a prompt must be the only message before its response")
        except ValueError as error:
            raise UsageError(
                f"{_place(str(path), content, line.start())}: {error}",
                remedy=_line_remedy(path, content),
            ) from error
        sides[split.side_of(example.prompt)].append(line.start())
    whole = hashlib.sha256(content).digest()
    return [
        FileExamples(
            str(path),
            content,
            np.array(side, dtype=np.int64),
            hashlib.sha256(whole + side.tobytes()).hexdigest(),
        )
        for side in sides
    ]


def _line_remedy(path: Path, content: bytes) -> str:
    """Returns a line that is an example, or how to make lines of one JSON array."""
    if not content[:LONGEST_LINE_BYTES].lstrip().startswith(b"["):
        return '{"prompt": "2+2=", "response": "4"}'
    program = "import json, sys; [print(json.dumps(one)) for one in json.load(sys.stdin)]"
    return f'one object per line: `python3 -c "{program}" < {shlex.quote(str(path))} > NEW.jsonl`'


def _place(name: str, content: bytes, start: int) -> str:
    number = 1 + content.count(b"\n", 0, start)
    return f"{name}, line {number:,}"


def _parse(line: bytes) -> Example:
    """Returns the example on a line; a ValueError says why it is not one."""
    if len(line) > LONGEST_LINE_BYTES:
        raise ValueError(f"it has more than {LONGEST_LINE_BYTES >> 20} MiB")
    try:
        fields = parse_unshaped(line)
    except JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.pos + 1:,}") from error
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    before = messages_of(fields)
    response = before.pop().content if before[-1].role == ASSISTANT else None
    if not before:
        raise ValueError("there is no message before the response")
    prompt = next((one.content for one in before if one.role == USER), before[0].content)
    if response is not None:
        fields = {"response": response} | fields
    is_alone = before == [Message(USER, prompt)]
    return Example(prompt, response, fields, None if is_alone else tuple(before))


def messages_of(fields: Mapping[str, Any]) -> list[Message]:
    """Returns the messages of an example. The response, if there is one, is the last of them.

    A ValueError says why an object is not an example.
    """
    for key in LISTS:
        if key in fields and fields.get("response") is None:
            return _listed(fields, key)
    asked, answered = "prompt", "response"
    if "prompt" not in fields and "instruction" in fields:
        asked, answered = "instruction", "output"
    # A prompt that is missing is the last complaint.
    answer = None if fields.get(answered) is None else _text(fields, answered)
    if asked not in fields:
        raise ValueError("there is no prompt, and no messages or instruction in its place")
    prompt = _text(fields, asked)
    if asked == "instruction" and fields.get("input"):
        prompt = f"{prompt}\n\n{_text(fields, 'input')}"
    found = [Message(USER, prompt)]
    return found if answer is None else [*found, Message(ASSISTANT, answer)]


def _listed(fields: Mapping[str, Any], key: str) -> list[Message]:
    if fields.get("tools"):
        raise ValueError("tools are not supported")
    listed = fields[key]
    if not isinstance(listed, list) or not listed:
        raise ValueError(f"{key} is not a list of messages")
    found = list[Message]()
    for number, fields_of_one in enumerate(listed, 1):
        try:
            found.append(_message(fields_of_one, *LISTS[key]))
        except ValueError as error:
            raise ValueError(f"message {number}: {error}") from error
    return found


def _message(fields: Any, role_key: str, text_key: str) -> Message:
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    others = [key for key, value in fields.items() if key not in (role_key, text_key) and value]
    if others:
        raise ValueError(f"{others[0]!r} is not supported")
    role = _text(fields, role_key)
    return Message(SHAREGPT_ROLES.get(role, role), _text(fields, text_key))


def _text(fields: Mapping[str, Any], key: str) -> str:
    text = fields.get(key)
    if not isinstance(text, str):
        raise ValueError(f"{key} is not a string" if key in fields else f"there is no {key}")
    if not is_unicode(text):
        raise ValueError(f"{key} is not valid Unicode")
    return text


def _sum(numbers: list[str]) -> str:
    """Returns the sum with a leading zero if it has no more digits than the numbers."""
    return f"{sum(map(int, numbers)):0{len(numbers[0]) + 1}d}"


TASKS: dict[str, tuple[int, Callable[[list[str]], str]]] = {
    "sort": (1, lambda numbers: "".join(sorted(numbers[0]))),
    "reverse": (1, lambda numbers: numbers[0][::-1]),
    "add": (2, _sum),
}
"""How many numbers a prompt has and how they are answered, by `data.task`.

The numbers have the same number of digits, and all answers of a task have the same length.

To add a task with verifiable answers: an entry here, and its name in
`rampcli/settings/data.py:DataConfig`.
"""
TASK_CHARACTERS = "0123456789+="
"""Characters of prompts and answers."""


def pose(name: str, *, digits: int, seed: int, index: int, attempt: int) -> tuple[str, str]:
    """Returns a prompt such as `31415926=` or `123+456=`, and its answer.

    Both depend on the arguments alone. Prompts are uniformly distributed.
    """
    count, answer = TASKS[name]
    drawn = count * digits
    key = f"rampcli task {name} {digits} {seed} {index} {attempt}".encode()
    # Eight bytes more than the digits need make all of them equally likely to within 2^-64.
    number = int.from_bytes(hashlib.shake_256(key).digest(drawn // 2 + 9), "big") % 10**drawn
    text = f"{number:0{drawn}d}"
    numbers = [text[first : first + digits] for first in range(0, drawn, digits)]
    return f"{'+'.join(numbers)}=", answer(numbers)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskExamples:
    """Examples of a built-in task on one side of a split, without end."""

    task: str
    digits: int
    seed: int
    split: Split
    side: int

    @property
    def name(self) -> str:
        """The setting."""
        return f"data.task={self.task}"

    @property
    def fingerprint(self) -> str:
        """The values that determine the examples."""
        return f"task {self.task} {self.digits} {self.seed} {self.split.bounds} {self.side}"

    def __len__(self) -> int:
        return 0 if self.split.is_empty(self.side) else ENDLESS

    def __getitem__(self, index: int) -> Example:
        """Returns an example: the first of its prompts that is on this side.

        Raises:
            UsageError: the task has too few prompts on this side.
        """
        for attempt in range(MOST_ATTEMPTS):
            prompt, answer = pose(
                self.task, digits=self.digits, seed=self.seed, index=index, attempt=attempt
            )
            if self.split.side_of(prompt) == self.side:
                return Example(prompt, answer, {"prompt": prompt, "answer": answer})
        use = "training" if self.side == TRAINING_SIDE else "validation"
        raise UsageError(
            f"{self.name} with data.task_digits={self.digits} has too few prompts for {use}",
            keys=(DataConfig.task_digits, DataConfig.split),
            remedy=("a larger data.task_digits", "a larger share of data.split"),
        )

    def place(self, index: int) -> str:  # noqa: ARG002
        """Returns the setting."""
        return self.name


Examples = FileExamples | TaskExamples
"""Examples by index. `fingerprint` identifies their contents; `place` names one of them."""


def open_examples(config: Config, *, needs_responses: bool) -> tuple[Examples, Examples]:
    """Returns the examples of `data.source=pairs` for training and for validation.

    Args:
        needs_responses: refuse examples without a response.

    Raises:
        UsageError: a file cannot be read, or is not a file of examples.
    """
    data, split = config.data, Split.of(config.data.split)
    if data.task is not None:
        training, validation = (
            TaskExamples(
                task=data.task, digits=data.task_digits, seed=config.seed, split=split, side=side
            )
            for side in (TRAINING_SIDE, VALIDATION_SIDE)
        )
        return training, validation
    if data.validation_path is None:
        first, second, *_ = _read(data.path, DataConfig.path, split, needs_responses)
        return first, second
    [whole] = _read(data.path, DataConfig.path, UNSPLIT, needs_responses)
    [held_out] = _read(data.validation_path, DataConfig.validation_path, UNSPLIT, needs_responses)
    return whole, held_out


def open_named_examples(config: Config) -> dict[str, Examples]:
    """Returns the examples of the named corpora of `data.validation`. Raises as `open_examples`."""
    named = config.data.validation or {}
    return {
        name: _read(path, DataConfig.validation, UNSPLIT, needs_responses=True)[0]
        for name, path in named.items()
    }


def _read(path: str | None, key: str, split: Split, needs_responses: bool) -> list[FileExamples]:
    assert path is not None
    with naming_setting(key):
        return read_file_examples(Path(path).expanduser(), split, needs_responses=needs_responses)
