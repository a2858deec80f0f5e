"""Indexed corpora and their manifests, refused when they are opened."""

import struct
from typing import Any

from hostile.case import Case, case, each
from hostile.cases.run_files import ESCAPES
from hostile.materials import PRETRAIN
from hostile.world import (
    Change,
    Plant,
    World,
    cut,
    device,
    edit_bytes,
    edit_json,
    edits,
    fifo,
    folder,
    not_files,
    not_json,
    remove,
    write,
)
from rampcli.data.indexed import HEADER, MAGIC
from rampcli.data.tokenizer import byte_tokenizer

INSPECT = "data inspect corpus"
PAIRS = "pretrain -f llama3_tiny data=pairs data.path=a.jsonl run_dir=r"
SEQUENCES = 60
AT_LENGTHS = HEADER.size
AT_POINTERS = AT_LENGTHS + 4 * SEQUENCES
AT_DOCUMENTS = AT_POINTERS + 8 * SEQUENCES
TWO_BYTES = 8
"""The code of the type of the corpus."""


def number(at: int, kind: str, value: int) -> Plant:
    """Overwrites a number of the index."""
    packed = struct.pack(f"<{kind}", value)
    return edit_bytes(
        "corpus.idx", lambda content: content[:at] + packed + content[at + len(packed) :]
    )


def header(**changed: int) -> Plant:
    """Overwrites the index's header."""
    facts = {
        "version": 1,
        "code": TWO_BYTES,
        "sequences": SEQUENCES,
        "boundaries": SEQUENCES + 1,
    } | changed
    return edit_bytes(
        "corpus.idx", lambda content: HEADER.pack(MAGIC, *facts.values()) + content[HEADER.size :]
    )


INDEXES: dict[str, Plant] = {
    "a negative length": number(AT_LENGTHS + 4, "i", -5),
    "a pointer outside the file": number(AT_POINTERS + 8, "q", 2**62),
    "decreasing pointers": number(AT_POINTERS + 80, "q", 2),
    "decreasing document indices": number(AT_DOCUMENTS + 8 * 10, "q", 2),
    "2^60 sequences": header(sequences=2**60),
    "wrong lengths with a correct sum": header(sequences=SEQUENCES - 2, boundaries=SEQUENCES + 4),
    "tokens of another size": header(code=5),
    "an empty index": write("corpus.idx", b""),
    "truncated tokens": cut("corpus.bin"),
    "no tokens": remove("corpus.bin"),
    "an index that is a FIFO": fifo("corpus.idx"),
    "tokens that are a FIFO": fifo("corpus.bin"),
    "an index that is an endless device": device("corpus.idx"),
    "tokens that are a folder": folder("corpus.bin"),
}

MANIFESTS: dict[str, Change] = {
    "a vocabulary that is a string": {"vocab_size": "many"},
    "a negative vocabulary": {"vocab_size": -5},
    "a vocabulary of 10^30": {"vocab_size": 10**30},
    "a largest token that is a list": {"largest_token": [1]},
    "files that are a string": {"files": "x"},
    "a string for empty": {"empty": "none"},
    "a mapping for skipped": {"skipped": {}},
    "another format": {"format": 2},
    "a tokenizer that is a number": {"tokenizer": 5},
    "an end of document that is a list": {"eod_token": [], "eod": "x"},
}


def escaping(manifest: dict[str, Any]) -> None:
    manifest.update(
        tokenizer=ESCAPES, eod_token=ESCAPES, inputs=[{"name": ESCAPES, "bytes": 1, "mtime_ns": 1}]
    )


def tokens_of_escapes(world: World) -> None:
    """Tokens that decode to escape sequences, which a corpus may contain."""
    content = (ESCAPES * 200).encode()[:830]
    (world.here / "corpus.bin").write_bytes(b"".join(bytes([byte, 0]) for byte in content))


CASES: list[Case] = [
    *each("a corpus with {}: inspect", INSPECT, (2, 5), INDEXES, uses=("corpus",)),
    *each(
        "a corpus with {}: pretrain",
        PRETRAIN,
        (2, 5),
        INDEXES,
        of=(
            "a negative length",
            "decreasing pointers",
            "decreasing document indices",
            "2^60 sequences",
            "truncated tokens",
        ),
    ),
    *each(
        "a corpus's manifest, {}: inspect",
        INSPECT,
        (2, 5),
        not_json("corpus.json") | edits("corpus.json", MANIFESTS),
        uses=("corpus",),
    ),
    *each(
        "a corpus's manifest, {}: pretrain",
        PRETRAIN,
        (2, 5),
        edits("corpus.json", MANIFESTS),
        of=("a vocabulary that is a string", "a largest token that is a list"),
    ),
    case(
        "a corpus's manifest is a FIFO: inspect",
        INSPECT,
        (2, 5),
        fifo("corpus.json"),
        uses=("corpus",),
    ),
    *(
        case(
            f"a corpus's manifest, escape sequences: inspect{option}",
            f"{INSPECT}{option}",
            codes,
            edit_json("corpus.json", escaping),
            uses=("corpus",),
        )
        for option, codes in {"": (0, 2, 5), " --verify": (0, 1, 2, 5)}.items()
    ),
    case(
        "a corpus with escape sequences: inspect", INSPECT, 0, tokens_of_escapes, uses=("corpus",)
    ),
    *each(
        "pairs that are {}: pretrain",
        PAIRS,
        2,
        not_files("a.jsonl", "a FIFO", "an endless device", "a folder")
        | {"escape sequences": not_json("a.jsonl")["an escape sequence"]},
        uses=(),
    ),
    case(
        "pairs and a chat template that is a FIFO: pretrain",
        f"{PAIRS} data.tokenizer=tokenizer.json",
        2,
        write("a.jsonl", '{"prompt": "x", "response": "y"}'),
        write("tokenizer.json", byte_tokenizer().to_str()),
        fifo("chat_template.jinja"),
        uses=(),
    ),
    case("a prefix with escape sequences: inspect", "data inspect '\x1b[2J\u202e'", 2, uses=()),
    case("a prefix that is a device: inspect", "data inspect /dev/zero", 2, uses=()),
    case("a prefix without a name: inspect", "data inspect /", 2, uses=()),
]
