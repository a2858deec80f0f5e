"""Reads the wrong inputs of bad_inputs.yaml."""

import re
import shlex
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.prompts import PROMPT_WORDS

BASE = ("plan", "--factory", "llama3_8b")
"""What a row without a command is typed after."""
GPT3 = "rampcli plan --factory gpt3_5b"
TINY = "rampcli pretrain -f llama3_tiny"
ALIASES = {
    "gpt3": GPT3,
    "maxtext": f"{GPT3} enable_rampup_batch_size=true per_device_batch_size_increment=2",
    "tiny": TINY,
    "sweep": "rampcli sweep --factory llama3_tiny",
    "corpus": "rampcli data build in.txt --output c --tokenizer bytes",
    "rl": f"rampcli rl --factory llama3_tiny --dry-run {shlex.join(PROMPT_WORDS)}",
    "weights": "rampcli rl --factory sort_digits",
}
"""What stands for the first word of a row."""
USES = {
    "a.jsonl": f"{TINY} data=pairs data.path=a.jsonl",
    "d/wiki.idx": f"{TINY} data=indexed data.path=d/wiki",
}
"""What is typed to use a file. The file of an option is used by the option's name."""
NEMO_FILE = Path(__file__).parents[1] / "words/nemo_files/tiny.yaml"
REPEATED = re.compile(r"<(.+?) x (\d+)>")


@dataclass(frozen=True, slots=True)
class BadInput:
    """One wrong input.

    Attributes:
        title: what is wrong, in a few words.
        words: the words after `rampcli`.
        files: content of the files in the working directory, by path.
    """

    title: str
    words: tuple[str, ...]
    files: Mapping[str, str | bytes]


def index(version: int = 1, code: int = 8, tokens: int = 12) -> bytes:
    """Returns the index of one document in Megatron's format."""
    return struct.pack("<9sQBQQiqqq", b"MMIDIDX\0\0", version, code, 1, 2, tokens, 0, 0, 1)


CONTENTS: dict[str, str | bytes] = {
    "<an index>": index(),
    "<an index of version 2>": index(version=2),
    "<an index of floats>": index(code=7),
    "<an index of no tokens>": index(tokens=0),
    "<an index of -12 tokens>": index(tokens=-12),
    "<a truncated index>": index()[:40],
    "<20 bytes>": bytes(20),
    "<24 bytes>": bytes(24),
    "<settings in UTF-16>": "lr: 1\n".encode("utf-16"),
    "<settings that are not text>": b"lr: \xff\xfe\n",
    "<pairs that are not text>": b'{"prompt": "2+2=", "response": "4"}\n{"prompt": "\xff"}',
    "<a file of NeMo>": NEMO_FILE.read_text().split("\n", 1)[1],
    "<a tokenizer>": '{"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel",'
    ' "unk_token": "0", "vocab": {"0": 0, "\\n": 1}}}',
}


def words_of(typed: str) -> tuple[str, ...]:
    """Returns the words after `rampcli` of what a row types."""
    alias, _, rest = typed.partition(" ")
    typed = f"{ALIASES[alias]} {rest}" if alias in ALIASES else typed
    words = tuple(shlex.split(_repeat(typed)))
    return words[1:] if words[:1] == ("rampcli",) else (*BASE, *words)


def read_row(title: str, row: str | dict[str, str]) -> BadInput:
    """Returns a row of the file."""
    if isinstance(row, str):
        return BadInput(title, words_of(row), {})
    files = {name: content for name, content in row.items() if name != "typed"}
    first = next(iter(files))
    uses = USES.get(first, f"--config-dir . {Path(first).parent}={Path(first).stem}")
    return BadInput(
        title,
        words_of(row.get("typed", uses)),
        {name: CONTENTS.get(text, _repeat(text)) for name, text in files.items()},
    )


def give_files(row: BadInput, folder: Path) -> None:
    """Writes the files that an input reads."""
    for name, content in row.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def _repeat(text: str) -> str:
    return REPEATED.sub(lambda repeated: repeated[1] * int(repeated[2]), text)


FILE = Path(__file__).with_suffix(".yaml")
SECTIONS = {
    topic: tuple(read_row(title, row) for title, row in rows.items())
    for topic, rows in yaml.safe_load(FILE.read_text(encoding="utf-8")).items()
}
BAD_INPUTS = tuple(row for rows in SECTIONS.values() for row in rows)
