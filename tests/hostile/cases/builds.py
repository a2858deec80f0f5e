"""Unfinished builds, and inputs of builds."""

import gzip
from collections.abc import Callable
from typing import Any

from hostile.case import Case, case
from hostile.cases.run_files import ESCAPES
from hostile.world import (
    Plant,
    cut,
    device,
    edit_json,
    fifo,
    folder,
    hostile_json,
    link,
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

PROGRESS: dict[str, Callable[[Any], Any]] = {
    "tokens that are a string": lambda progress: progress.update(tokens="many"),
    "negative tokens": lambda progress: progress.update(tokens=-5, documents=-5),
    "10^30 tokens": lambda progress: progress.update(tokens=10**30),
    "more documents than there are": lambda progress: progress.update(documents=10**9),
    "a position that is a list": lambda progress: progress.update(position=[]),
    "a position far beyond the end": lambda progress: progress["position"].update(
        dict.fromkeys(progress["position"], 10**15)
    ),
    "a negative position": lambda progress: progress["position"].update(
        dict.fromkeys(progress["position"], -1)
    ),
    "a position that is a string": lambda progress: progress["position"].update(
        dict.fromkeys(progress["position"], "x")
    ),
    "is_complete that is a string": lambda progress: progress.update(is_complete="yes"),
    "complete, but it is not": lambda progress: progress.update(is_complete=True),
}
SETTINGS: dict[str, Callable[[Any], Any]] = {
    "inputs that are a number": lambda settings: settings.update(inputs=5),
    "inputs without names": lambda settings: settings.update(inputs=[{}]),
    "inputs named with escape sequences": lambda settings: settings.update(
        inputs=[{"name": ESCAPES, "bytes": 1, "mtime_ns": 1}]
    ),
    "a tokenizer with escape sequences": lambda settings: settings.update(tokenizer=ESCAPES),
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

CASES: list[Case] = [
    case("an unfinished build is resumed", BUILD, 0, uses=USES, writes=WRITES),
    *(
        case(f"an unfinished build, {file}, {name}", BUILD, (2, 5), harm, uses=USES, writes=WRITES)
        for file, changes in {"progress.json": PROGRESS, "settings.json": SETTINGS}.items()
        for name, harm in (
            *(
                (name, write(f"half.building/{file}", text))
                for name, text in hostile_json().items()
            ),
            *(
                (name, edit_json(f"half.building/{file}", change))
                for name, change in changes.items()
            ),
        )
    ),
    *(
        case(
            f"an unfinished build, {kind} at {name}",
            BUILD,
            (0, 2, 5),
            plant(f"half.building/{name}"),
            uses=USES,
            writes=WRITES,
        )
        for name in FILES
        for kind, plant in {"a link": link, "a FIFO": fifo, "a folder": folder}.items()
    ),
    case(
        "an unfinished build, a link at its lock",
        BUILD,
        (2, 5),
        link("half.building/lock"),
        uses=USES,
        writes=WRITES,
    ),
    case(
        "an unfinished build, a FIFO at its lock",
        BUILD,
        (2, 5),
        fifo("half.building/lock"),
        uses=USES,
        writes=WRITES,
    ),
    case(
        "an unfinished build, truncated tokens",
        BUILD,
        (2, 5),
        cut("half.building/tokens.bin"),
        uses=USES,
        writes=WRITES,
    ),
    case(
        "an unfinished build, no lengths",
        BUILD,
        (2, 5),
        remove("half.building/lengths.bin"),
        uses=USES,
        writes=WRITES,
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
