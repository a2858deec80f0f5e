"""Damaged records of a run: state.json, metrics.jsonl, events.jsonl, manifests of checkpoints."""

import json
from collections.abc import Callable
from typing import Any

from hostile.case import Case, case
from hostile.materials import NEWER, OLDER, PRETRAIN
from hostile.world import (
    Plant,
    World,
    cut,
    edit_json,
    fifo,
    folder,
    hostile_json,
    link,
    remove,
    write,
    write_json,
)

STATUS = "status run"
GENERATE = "generate run --prompt text --max-tokens 2 --json"
EXPORT = "export run out"
TUNE = PRETRAIN.replace("pretrain", "tune", 1)
LOCK = ("run/lock",)
ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202egpj.exe\r\b"

STATES: dict[str, Callable[[Any], Any]] = {
    "a status that is a number": lambda state: state.update(status=5),
    "a step that is a string": lambda state: state.update(step="3"),
    "a negative step": lambda state: state.update(step=-1),
    "a step of 10^30": lambda state: state.update(step=10**30),
    "a step that is NaN": lambda state: state.update(step=float("nan")),
    "samples that are a list": lambda state: state.update(consumed_samples=[1]),
    "a list for next": lambda state: state.update(next=[]),
    "a next command that is a mapping": lambda state: state.update(
        next={"stage": 0, "global_batch_size": 1, "num_nodes": 1, "command": {}}
    ),
    "an error that is a string": lambda state: state.update(status="failed", error="disk"),
    "an error without a message": lambda state: state.update(status="failed", error={}),
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


def rows(name: str, change: Callable[[dict[str, Any]], Any]) -> Plant:
    """Damages the last row of a JSON lines file."""

    def plant(world: World) -> None:
        path = world.here / "run" / name
        *before, last = path.read_text().splitlines()
        row = json.loads(last)
        row = change(row) or row
        path.write_text("\n".join([*before, row if isinstance(row, str) else json.dumps(row), ""]))

    return plant


ROWS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a step that is a string": lambda row: row.update(step="x"),
    "a negative step": lambda row: row.update(step=-5),
    "infinite samples": lambda row: row.update(consumed_samples=float("inf")),
    "a stage that is a list": lambda row: row.update(stage=[]),
    "a time of zero": lambda row: row.update(step_time_s=0, samples_per_s=0),
    "a loss that is a mapping": lambda row: row.update(loss={}),
    "no columns": lambda _: {"x": 1},
    "deep": lambda _: "[" * 100_000,
    "escape sequences as a row": lambda _: ESCAPES,
    "a row of three megabytes": lambda _: json.dumps({"step": "x" * 3_000_000}),
}
EVENTS: dict[str, Callable[[dict[str, Any]], Any]] = {
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

MANIFESTS: dict[str, Callable[[Any], Any]] = {
    "of another step": lambda manifest: manifest.update(step=7),
    "a step that is a string": lambda manifest: manifest.update(step="4"),
    "negative samples": lambda manifest: manifest.update(consumed_samples=-4),
    "10^30 samples": lambda manifest: manifest.update(consumed_samples=10**30),
    "files that are a list": lambda manifest: manifest.update(files=[1]),
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
    "settings that are a list": lambda manifest: manifest.update(settings=[]),
    "no corpus": lambda manifest: {
        key: value for key, value in manifest.items() if key != "corpus"
    },
    "a string for recent": lambda manifest: manifest.update(recent="x"),
}
IN_PLACE: dict[str, Callable[[str], Plant]] = {"a FIFO": fifo, "a folder": folder, "a link": link}
NEWEST, BOTH = (f"{NEWER}/manifest.json",), (f"{NEWER}/manifest.json", f"{OLDER}/manifest.json")

CASES: list[Case] = [
    *(
        case(f"state.json, {name}: status", STATUS, 5, write("run/state.json", text))
        for name, text in hostile_json().items()
    ),
    *(
        case(f"state.json, {name}: status", STATUS, 5, edit_json("run/state.json", change))
        for name, change in STATES.items()
    ),
    *(
        case(f"state.json is {name}: status", STATUS, (2, 5), plant("run/state.json"))
        for name, plant in IN_PLACE.items()
        if name != "a link"
    ),
    *(
        case(
            f"state.json, {name}: pretrain",
            PRETRAIN,
            5,
            write("run/state.json", hostile_json()[name]),
        )
        for name in ("truncated", "deep list", "not UTF-8")
    ),
    case(
        "state.json, escape sequences everywhere: status",
        STATUS,
        0,
        edit_json("run/state.json", escaping),
    ),
    case(
        "state.json, escape sequences everywhere: status --json",
        f"{STATUS} --json",
        0,
        edit_json("run/state.json", escaping),
    ),
    case(
        "state.json, escape sequences everywhere: pretrain",
        f"{PRETRAIN} resume=never",
        2,
        edit_json("run/state.json", escaping),
    ),
    case(
        "state.json is damaged, which generating does not need",
        GENERATE,
        0,
        write("run/state.json", "["),
    ),
    *(
        case(f"metrics.jsonl, {name}: status", STATUS, 5, rows("metrics.jsonl", change))
        for name, change in ROWS.items()
    ),
    *(
        case(f"metrics.jsonl is {name}: status", STATUS, (2, 5), plant("run/metrics.jsonl"))
        for name, plant in IN_PLACE.items()
        if name != "a link"
    ),
    case(
        "metrics.jsonl, a damaged row: pretrain",
        PRETRAIN,
        5,
        rows("metrics.jsonl", ROWS["a time of zero"]),
    ),
    case(
        "metrics.jsonl, a truncated last row: status",
        STATUS,
        0,
        cut("run/metrics.jsonl", 0.9),
    ),
    *(
        case(f"events.jsonl, {name}: pretrain", PRETRAIN, 5, rows("events.jsonl", change))
        for name, change in EVENTS.items()
    ),
    case("events.jsonl is a FIFO: pretrain", PRETRAIN, (2, 5), fifo("run/events.jsonl")),
    *(
        case(
            f"the newest manifest, {name}: generate takes the one before",
            GENERATE,
            0,
            write(NEWEST[0], text),
            says='"step": 3',
        )
        for name, text in hostile_json().items()
    ),
    *(
        case(
            f"the newest manifest, {name}: generate takes the one before",
            GENERATE,
            0,
            edit_json(NEWEST[0], change),
            says='"step": 3',
        )
        for name, change in MANIFESTS.items()
    ),
    *(
        case(
            f"the newest manifest is {name}: generate takes the one before",
            GENERATE,
            0,
            plant(NEWEST[0]),
            says='"step": 3',
        )
        for name, plant in IN_PLACE.items()
    ),
    *(
        case(
            f"both manifests, {name}: {command.split()[0]}",
            command,
            5,
            *(write(path, hostile_json()[name]) for path in BOTH),
        )
        for name in ("deep mapping", "a list", "NaN", "an escape sequence")
        for command in (GENERATE, EXPORT, STATUS, PRETRAIN)
    ),
    case(
        "the newest manifest is damaged and was requested: generate",
        f"{GENERATE} --step 4",
        5,
        write(NEWEST[0], "{"),
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
    *(
        case(f"tune.json, {name}: tune", TUNE, 5, write("run/tune.json", text), writes=LOCK)
        for name, text in hostile_json().items()
    ),
    *(
        case(f"tune.json, {name}: tune", TUNE, 5, write_json("run/tune.json", content), writes=LOCK)
        for name, content in SEARCHES.items()
    ),
    *(
        case(f"{name} is {kind}: tune", TUNE, (2, 5), plant(f"run/{name}"), writes=LOCK)
        for kind, plant in IN_PLACE.items()
        for name in ("tune.json", "tune")
        if (kind, name) != ("a folder", "tune")
    ),
    case("a run directory named with escape sequences: status", "status '\x1b[2J\u202e'", 2),
    case(
        "a prompt with escape sequences: generate",
        "generate run --prompt '\x1b[2J\u202e' --max-tokens 2",
        0,
    ),
]
