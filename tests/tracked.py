"""Reads what trackers wrote, and plants trackers that fail."""

import json
import struct
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rampcli.launch import trackers
from rampcli.plugins.trackers import TRACKERS, TrackerClass
from rampcli.tracking import follow

BLOCK, HEADER = 32768, 7


def read_tensorboard(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Returns the curves that TensorBoard reads: steps and values by tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    curves = {
        tag: [(event.step, event.value) for event in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }
    texts = {
        tag: [(event.step, make_ndarray(event.tensor_proto)) for event in accumulator.Tensors(tag)]
        for tag in accumulator.Tags()["tensors"]
    }
    return curves | texts


def read_wandb(folder: Path) -> list[dict[str, Any]]:
    """Returns the logged points of all offline runs below a folder, oldest run first."""
    rows = []
    for path in sorted(folder.glob("offline-run-*/run-*.wandb")):
        for record in _records(path):
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                rows.append(
                    {
                        item.key or "/".join(item.nested_key): json.loads(item.value_json)
                        for item in items
                    }
                )
    return rows


def read_wandb_runs(folder: Path) -> list[Any]:
    """Returns the descriptions of all offline runs below a folder, oldest run first."""
    return [
        next(record.run for record in _records(path) if record.HasField("run"))
        for path in sorted(folder.glob("offline-run-*/run-*.wandb"))
    ]


def read_wandb_settings(folder: Path) -> dict[str, Any]:
    """Returns the settings of the newest offline run below a folder, by dotted key."""
    return {
        update.key: json.loads(update.value_json)
        for record in _records(max(folder.glob("offline-run-*/run-*.wandb")))
        for update in record.config.update
    }


def _records(path: Path) -> Iterator[Any]:
    """Yields the records of a .wandb file, which is a log as LevelDB writes it."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, content = path.read_bytes(), HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + HEADER])
        at += HEADER + length
        content += data[at - length : at]
        if kind in (1, 4):  # a whole record, or its last part
            yield Record.FromString(content)
            content = b""


class Planted:
    """A tracker that records its points in a file."""

    def __init__(self, run, _position, _name) -> None:
        self.facts, self.logged = {}, 0
        self.path = run.trackers / "planted.txt"

    def log_config(self, settings) -> None:
        assert "model.hidden_size" in settings

    def log(self, _metrics, step, **_) -> None:
        with self.path.open("a") as file:
            file.write(f"{step}\n")

    def flush(self) -> bool:
        return True

    def close(self) -> None:
        pass


class Hanging(Planted):
    """Hangs for ever in its fifth step."""

    def log(self, metrics, step, **facts) -> None:
        if step == 5:
            time.sleep(10_000)
        super().log(metrics, step, **facts)


class Raising(Planted):
    """Fails in its fifth step."""

    def log(self, _metrics, step, **_) -> None:
        if step == 5:
            raise ValueError("no such\nproject")


class Slow(Planted):
    """Needs ten seconds for each point, so minutes for a run."""

    def log(self, metrics, step, **facts) -> None:
        super().log(metrics, step, **facts)
        time.sleep(10)


def plant(**kinds: type[Planted]) -> None:
    """Replaces trackers of the table, and shortens how long one is waited for."""
    for name, kind in kinds.items():
        module = f"planted_{name}"
        sys.modules[module] = types.ModuleType(module)
        vars(sys.modules[module])[kind.__name__] = kind
        TRACKERS[name] = TrackerClass(name=f"{module}:{kind.__name__}")
    hurry()
    trackers.CATCH_UP_S = 1.0


def hurry() -> None:
    """Lets trackers look for new rows often, and start on a busy machine, however long it takes."""
    follow.LOOK_EVERY_S = 0.1
    trackers.CATCH_UP_S = 600.0
