"""Damaged records of a run: state.json, metrics.jsonl, events.jsonl, manifests of checkpoints."""

import json
from collections.abc import Mapping
from typing import Any

from hostile.case import Case, case, each
from hostile.materials import NEWER, OLDER, PRETRAIN
from hostile.world import (
    Change,
    Plant,
    World,
    changed,
    cut,
    edit_json,
    edits,
    fifo,
    not_files,
    not_json,
    remove,
    write,
    write_json,
)

STATUS = "status run"
REPORT = "report run"
GENERATE = "generate run --prompt text --max-tokens 2 --json"
EXPORT = "export run out"
TUNE = PRETRAIN.replace("pretrain", "tune", 1)
LOCK = ("run/lock",)
ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202egpj.exe\r\b"

STATES: dict[str, Change] = {
    "a status that is a number": {"status": 5},
    "a step that is a string": {"step": "3"},
    "a negative step": {"step": -1},
    "a step of 10^30": {"step": 10**30},
    "a step that is NaN": {"step": float("nan")},
    "samples that are a list": {"consumed_samples": [1]},
    "a list for next": {"next": []},
    "a next command that is a mapping": {
        "next": {"stage": 0, "global_batch_size": 1, "num_nodes": 1, "command": {}}
    },
    "an error that is a string": {"status": "failed", "error": "disk"},
    "an error without a message": {"status": "failed", "error": {}},
    "no status": lambda _: {"step": 1},
}


def escaping(state: dict[str, Any]) -> None:
    ahead = {"stage": 0, "global_batch_size": 1, "num_nodes": 1, "command": f"rampcli {ESCAPES}"}
    failure = {
        "message": ESCAPES,
        "remedy": ESCAPES,
        "set_by": [ESCAPES],
        "exit_code": 2,
        "understood": True,
    }
    state.update(status=ESCAPES, next=ahead, error=failure)


TRIAL = {
    "micro_batch_size": 1,
    "verdict": "fits",
    "reason": None,
    "world_size": 1,
    "data_parallel_size": 1,
    "accumulate_grad_batches": 1,
    "medians": [{"accumulate_grad_batches": 1, "s": 0.1, "low_s": 0.1, "high_s": 0.1, "steps": 9}],
    "peak_memory_bytes": None,
    "device": None,
    "device_name": None,
}
SEARCHES: dict[str, Any] = {
    name: {"conditions": {}, "trials": [TRIAL | change]}
    for name, change in {
        "an unknown verdict": {"verdict": ESCAPES},
        "a size of zero": {"micro_batch_size": 0},
        "a size of 10^30": {"micro_batch_size": 10**30},
        "times that are NaN": {"medians": [TRIAL["medians"][0] | {"s": float("nan")}]},
        "a time of zero": {"medians": [TRIAL["medians"][0] | {"s": 0}]},
        "a reason that is a mapping": {"reason": {}},
    }.items()
} | {"no conditions": {"trials": []}, "trials that are a mapping": {"conditions": {}, "trials": {}}}


def rows(name: str, changes: Mapping[str, Change]) -> dict[str, Plant]:
    """Damages the last row of a JSON lines file."""

    def damage(change: Change) -> Plant:
        def plant(world: World) -> None:
            path = world.here / "run" / name
            *before, last = path.read_text().splitlines()
            row = changed(json.loads(last), change)
            last = row if isinstance(row, str) else json.dumps(row)
            path.write_text("\n".join([*before, last, ""]))

        return plant

    return {kind: damage(change) for kind, change in changes.items()}


DECLARED = {
    **dict.fromkeys(("doc", "unit", "label"), ESCAPES),
    **{"name": "norm", "group": None, "summary": "last"},
    "chart": {
        **dict.fromkeys(("id", "title", "section", "unit"), ESCAPES),
        **dict.fromkeys(("log", "from_zero", "smooth"), True),
    },
}
"""A metric of columns.json."""
ROWS: dict[str, Change] = {
    "a step that is a string": {"step": "x"},
    "a negative step": {"step": -5},
    "infinite samples": {"consumed_samples": float("inf")},
    "a stage that is a list": {"stage": []},
    "a time of zero": {"step_time_s": 0, "samples_per_s": 0},
    "a loss that is a mapping": {"loss": {}},
    "no columns": lambda _: {"x": 1},
    "deep": lambda _: "[" * 100_000,
    "escape sequences as a row": lambda _: ESCAPES,
    "a row of three megabytes": lambda _: json.dumps({"step": "x" * 3_000_000}),
}
EVENTS: dict[str, Change] = {
    "a validation without a loss": lambda _: {
        "event": "validation",
        "time": 1.0,
        "step": 4,
        "consumed_samples": 16,
    },
    "a loss that is a string": lambda _: {
        "event": "validation",
        "time": 1.0,
        "step": 4,
        "consumed_samples": 16,
        "loss": ESCAPES,
    },
    "an event that is a list": lambda _: {"event": ["validation"], "time": 1.0},
    "invalid JSON": lambda _: ESCAPES,
}

MANIFESTS: dict[str, Change] = {
    "of another step": {"step": 7},
    "a step that is a string": {"step": "4"},
    "negative samples": {"consumed_samples": -4},
    "10^30 samples": {"consumed_samples": 10**30},
    "files that are a list": {"files": [1]},
    "files above it": lambda manifest: manifest["files"].update(
        {"../../config.yaml": {"bytes": 1, "sums": "0"}}
    ),
    "an absolute file": lambda manifest: manifest["files"].update(
        {"/etc/passwd": {"bytes": 1, "sums": "0"}}
    ),
    "a file named with escape sequences": lambda manifest: manifest["files"].update(
        {ESCAPES: {"bytes": 1, "sums": "0"}}
    ),
    "a file without a checksum": lambda manifest: manifest["files"].update(
        {"x.safetensors": {"bytes": 1}}
    ),
    "bytes that are a string": lambda manifest: manifest["files"]["tokenizer.json"].update(
        bytes="many"
    ),
    "negative bytes": lambda manifest: manifest["files"]["tokenizer.json"].update(bytes=-1),
    "a checksum that is a number": lambda manifest: manifest["files"]["tokenizer.json"].update(
        sums=5
    ),
    "settings that are a list": {"settings": []},
    "no corpus": lambda manifest: {
        key: value for key, value in manifest.items() if key != "corpus"
    },
    "a string for recent": {"recent": "x"},
}
NO_FILE, NO_FILE_OR_A_LINK = ("a FIFO", "a folder"), ("a FIFO", "a folder", "a link")
NEWEST = f"{NEWER}/manifest.json"

CASES: list[Case] = [
    *each("state.json, {}: status", STATUS, 5, not_json("run/state.json")),
    *each("state.json, {}: status", STATUS, 5, edits("run/state.json", STATES)),
    *each("state.json is {}: status", STATUS, (2, 5), not_files("run/state.json", *NO_FILE)),
    *each(
        "state.json, {}: pretrain",
        PRETRAIN,
        5,
        not_json("run/state.json"),
        of=("truncated", "deep list", "not UTF-8"),
    ),
    *(
        case(
            f"state.json, escape sequences everywhere: {name}",
            command,
            code,
            edit_json("run/state.json", escaping),
        )
        for name, command, code in (
            ("status", STATUS, 0),
            ("status --json", f"{STATUS} --json", 0),
            ("pretrain", f"{PRETRAIN} resume=never", 2),
        )
    ),
    case(
        "state.json is damaged, which generating does not need",
        GENERATE,
        0,
        write("run/state.json", "["),
    ),
    *each("columns.json, {}: report", REPORT, 5, not_json("run/columns.json")),
    case(
        "columns.json, escape sequences everywhere: report",
        REPORT,
        0,
        write_json("run/columns.json", {"metrics": [DECLARED]}),
    ),
    *each("metrics.jsonl, {}: status", STATUS, 5, rows("metrics.jsonl", ROWS)),
    *each("metrics.jsonl is {}: status", STATUS, (2, 5), not_files("run/metrics.jsonl", *NO_FILE)),
    case(
        "metrics.jsonl, a damaged row: pretrain",
        PRETRAIN,
        5,
        rows("metrics.jsonl", ROWS)["a time of zero"],
    ),
    case("metrics.jsonl, a truncated last row: status", STATUS, 0, cut("run/metrics.jsonl", 0.9)),
    *each("events.jsonl, {}: pretrain", PRETRAIN, 5, rows("events.jsonl", EVENTS)),
    case("events.jsonl is a FIFO: pretrain", PRETRAIN, (2, 5), fifo("run/events.jsonl")),
    *(
        row
        for verb, plants in {
            ",": not_json(NEWEST) | edits(NEWEST, MANIFESTS),
            " is": not_files(NEWEST, *NO_FILE_OR_A_LINK),
        }.items()
        for row in each(
            f"the newest manifest{verb} {{}}: generate takes the one before",
            GENERATE,
            0,
            plants,
            says='"step": 3',
        )
    ),
    *(
        case(
            f"both manifests, {name}: {command.split()[0]}",
            command,
            5,
            *(not_json(f"{checkpoint}/manifest.json")[name] for checkpoint in (NEWER, OLDER)),
        )
        for name in ("deep mapping", "a list", "NaN", "an escape sequence")
        for command in (GENERATE, EXPORT, STATUS, PRETRAIN)
    ),
    case(
        "the newest manifest is damaged and was requested: generate",
        f"{GENERATE} --step 4",
        5,
        write(NEWEST, "{"),
    ),
    case("both checkpoints were removed: generate", GENERATE, 5, remove(NEWER), remove(OLDER)),
    case(
        "a checkpoint without a last step: generate",
        GENERATE,
        0,
        write_json("run/checkpoints/step_99999999999999999999/manifest.json", {}),
    ),
    case(
        "overrides.txt and plan.json are FIFOs: generate",
        GENERATE,
        0,
        fifo("run/overrides.txt"),
        fifo("run/plan.json"),
    ),
    *each("tune.json, {}: tune", TUNE, 5, not_json("run/tune.json"), writes=LOCK),
    *(
        case(f"tune.json, {name}: tune", TUNE, 5, write_json("run/tune.json", content), writes=LOCK)
        for name, content in SEARCHES.items()
    ),
    *(
        row
        for name, kinds in {"tune.json": NO_FILE_OR_A_LINK, "tune": ("a FIFO", "a link")}.items()
        for row in each(
            f"{name} is {{}}: tune", TUNE, (2, 5), not_files(f"run/{name}", *kinds), writes=LOCK
        )
    ),
    case("a run directory named with escape sequences: status", "status '\x1b[2J\u202e'", 2),
    case(
        "a prompt with escape sequences: generate",
        "generate run --prompt '\x1b[2J\u202e' --max-tokens 2",
        0,
    ),
]
