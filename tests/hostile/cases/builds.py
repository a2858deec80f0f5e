"""Unfinished builds, and inputs of builds."""

import gzip
from collections.abc import Mapping

from hostile.case import Case, case, each
from hostile.cases.run_files import ESCAPES
from hostile.world import (
    Change,
    Plant,
    cut,
    device,
    edits,
    fifo,
    not_files,
    not_json,
    remove,
    write,
)

BUILD = "data build in.jsonl --output half --tokenizer bytes"
USES = ("in.jsonl", "half.building")
WRITES = (
    "half.building",
    "half.bin",
    "half.idx",
    "half.json",
    "half.tokenizer.json",
    "half.skipped.jsonl",
)
FILES = ("tokens.bin", "lengths.bin", "settings.json", "progress.json")

PROGRESS: dict[str, Change] = {
    "tokens that are a string": {"tokens": "many"},
    "negative tokens": {"tokens": -5, "documents": -5},
    "10^30 tokens": {"tokens": 10**30},
    "more documents than there are": {"documents": 10**9},
    "a position that is a list": {"position": []},
    "a position far beyond the end": lambda progress: progress["position"].update(
        dict.fromkeys(progress["position"], 10**15)
    ),
    "a negative position": lambda progress: progress["position"].update(
        dict.fromkeys(progress["position"], -1)
    ),
    "a position that is a string": lambda progress: progress["position"].update(
        dict.fromkeys(progress["position"], "x")
    ),
    "is_complete that is a string": {"is_complete": "yes"},
    "complete, but it is not": {"is_complete": True},
}
SETTINGS: dict[str, Change] = {
    "inputs that are a number": {"inputs": 5},
    "inputs without names": {"inputs": [{}]},
    "inputs named with escape sequences": {
        "inputs": [{"name": ESCAPES, "bytes": 1, "mtime_ns": 1}]
    },
    "a tokenizer with escape sequences": {"tokenizer": ESCAPES},
}
INPUTS: dict[str, tuple[Plant, str]] = {
    "invalid JSON": (write("bad.jsonl", "{" * 1000 + "\n"), "bad.jsonl"),
    "deep JSON": (write("bad.jsonl", "[" * 100_000 + "\n"), "bad.jsonl"),
    "escape sequences as keys": (write("bad.jsonl", '{"\\u001b[2J\\u202e": 1}\n'), "bad.jsonl"),
    "not UTF-8": (write("bad.txt", b"\xff\xfe" * 50), "bad.txt"),
    "a damaged gzip": (write("bad.jsonl.gz", gzip.compress(b"x" * 9999)[:40]), "bad.jsonl.gz"),
    "no gzip": (write("bad.jsonl.gz", b"\x1b[2J"), "bad.jsonl.gz"),
    "no zstandard": (write("bad.jsonl.zst", b"\x1b[2J" * 10), "bad.jsonl.zst"),
    "no Parquet": (write("bad.parquet", b"PAR1" + b"\0" * 40 + b"PAR1"), "bad.parquet"),
    "a FIFO": (fifo("bad.txt"), "bad.txt"),
    "an endless device": (device("bad.txt"), "bad.txt"),
    "a name with escape sequences": (write("\x1b[2J\u202e.jsonl", "{}\n"), "'\x1b[2J\u202e.jsonl'"),
}


def unfinished(name: str, code: int | tuple[int, ...], plants: Mapping[str, Plant]) -> list[Case]:
    return each(f"an unfinished build, {name}", BUILD, code, plants, uses=USES, writes=WRITES)


CASES: list[Case] = [
    case("an unfinished build is resumed", BUILD, 0, uses=USES, writes=WRITES),
    *(
        row
        for file, changes in {"progress.json": PROGRESS, "settings.json": SETTINGS}.items()
        for row in unfinished(
            f"{file}, {{}}",
            (2, 5),
            not_json(f"half.building/{file}") | edits(f"half.building/{file}", changes),
        )
    ),
    *(
        row
        for file in FILES
        for row in unfinished(
            f"{{}} at {file}",
            (0, 2, 5),
            not_files(f"half.building/{file}", "a link", "a FIFO", "a folder"),
        )
    ),
    *unfinished("{} at its lock", (2, 5), not_files("half.building/lock", "a link", "a FIFO")),
    *unfinished(
        "{}",
        (2, 5),
        {
            "truncated tokens": cut("half.building/tokens.bin"),
            "no lengths": remove("half.building/lengths.bin"),
        },
    ),
    *(
        case(
            f"an input that is {name}: build",
            f"data build {words} --output new --tokenizer bytes",
            (2, 5),
            plant,
            uses=(),
        )
        for name, (plant, words) in INPUTS.items()
    ),
]
