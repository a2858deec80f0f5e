"""The tracker `tensorboard`: event files that TensorBoard reads, in trackers/tensorboard/."""

import os
import re
import time as clock
from collections.abc import Mapping
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.record_writer import RecordWriter

from rampcli.errors import visible
from rampcli.runs.directory import RunDirectory
from rampcli.runs.metrics import GOALS
from rampcli.tracking.tracker import (
    SAMPLES_AXIS,
    TOKENS_AXIS,
    Position,
    Tracker,
    TrackerFacts,
)

OVER_DATA = {one.tag(is_rl=False) for one in GOALS}
"""Curves that are also drawn against samples and tokens, as validation losses are."""
_VALIDATION = re.compile(r"validation/loss(/.*)?")
_FILE = re.compile(r"events\.out\.tfevents\.\d{10}\.rampcli", re.ASCII)


class TensorBoard(Tracker):
    """Writes an event file.

    A killed process may have written points after the last position that was saved. They are cut
    off the end of its file, because they are logged again.
    """

    def __init__(self, run: RunDirectory, position: Position, _name: str = "") -> None:
        self.logged = 0
        self._run = run
        self._folder = run.trackers / "tensorboard"
        self._start = position.step
        run.make_folder(self._folder)
        self._cut_off(position.facts)
        began = int(clock.time())
        while os.path.lexists(path := self._folder / f"events.out.tfevents.{began:010d}.rampcli"):
            began += 1
        self._file = run.open_to_append(path)
        self._writer = RecordWriter(self._file)
        self.facts: TrackerFacts = {"file": path.name}
        self._write(Event(wall_time=clock.time(), file_version="brain.Event:2"))
        self.flush()

    def log_config(self, settings: Mapping[str, Any]) -> None:
        """Writes the settings as a table, which the tab Text shows."""
        lines = ["| setting | value |", "|---|---|"]
        lines += [f"| `{key}` | `{visible(str(value))}` |" for key, value in settings.items()]
        text = TensorProto(
            dtype=DT_STRING,
            string_val=["\n".join(lines).encode()],
            tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
        )
        plugin = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        value = Summary.Value(tag="settings", metadata=plugin, tensor=text)
        summary = Summary(value=[value])
        self._write(Event(wall_time=clock.time(), step=self._start, summary=summary))

    def log(self, metrics: Mapping[str, float], step: int, *, time: float) -> None:
        """Writes the values at their step, and some of them also at their samples and tokens."""
        values = {
            tag: value for tag, value in metrics.items() if tag not in (SAMPLES_AXIS, TOKENS_AXIS)
        }
        self._write_scalars(values, step, time)
        for axis in (SAMPLES_AXIS, TOKENS_AXIS):
            if axis in metrics:
                over_data = {
                    f"{tag} vs {axis}": value
                    for tag, value in values.items()
                    if tag in OVER_DATA or _VALIDATION.fullmatch(tag)
                }
                self._write_scalars(over_data, int(metrics[axis]), time)

    def flush(self) -> bool:
        """Writes the file to disk."""
        self._writer.flush()
        os.fsync(self._file.fileno())
        self.facts["bytes"] = self._file.tell()
        return True

    def close(self) -> None:
        """Writes the file to disk and closes it."""
        self.flush()
        self._writer.close()

    def _cut_off(self, facts: TrackerFacts) -> None:
        """Cuts the file of the last process at the byte that belongs to the position."""
        name, size = facts.get("file"), facts.get("bytes")
        if not isinstance(name, str) or not isinstance(size, int) or not _FILE.fullmatch(name):
            return
        path = self._folder / name
        if not os.path.lexists(path):  # the user has deleted it
            return
        with self._run.open_to_append(path) as file:
            if file.seek(0, os.SEEK_END) > size:
                file.truncate(size)
                os.fsync(file.fileno())

    def _write_scalars(self, values: Mapping[str, float], step: int, time: float) -> None:
        if not values:
            return
        points = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._write(Event(wall_time=time, step=step, summary=Summary(value=points)))

    def _write(self, event: Event) -> None:
        self._writer.write(event.SerializeToString())
