"""What a run has done so far. Everything that shows a run takes its figures from here.

The facts follow from the state and the plan of a run, from its last rows of metrics, and from its
events. They are read from the files of a run, or added as they happen.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from typing import Any

from rampcli.batch.training_plan import StagePlan
from rampcli.errors import RampcliError
from rampcli.files.locks import is_held
from rampcli.runs.directory import BEFORE_THE_START, COMPLETE, RunDirectory
from rampcli.runs.event_kinds import EVALUATED, NEWEST
from rampcli.runs.events import EventsFile, RunEvents
from rampcli.runs.recorded_phases import has_several_lengths, length_at, phase_of, tokens_at
from rampcli.runs.rows import last_events, last_rows, read_rows
from rampcli.runs.time_left import RECENT_STEPS, Speed, column_median, settled_rows, time_left
from rampcli.runs.time_spent import TimeSpent

CRASHED = "crashed"
STAGE_FIELDS = tuple(each.name for each in fields(StagePlan))

Row = Mapping[str, Any]
"""A row of metrics.jsonl, an event, or a stage of plan.json."""


@dataclass(slots=True)
class RunFacts:
    """What a run has done so far. Figures that are unknown are None.

    Attributes:
        state: contents of state.json. It does not exist before the start.
        plan: contents of plan.json.
        rows: last rows of metrics.jsonl, at most `RECENT_STEPS`.
        events: what its events say.
        has_whole_clock: whether `events.clock` has heard all events. Otherwise, the time spent is
            unknown.
    """

    state: dict[str, Any] | None = None
    plan: dict[str, Any] | None = None
    rows: Sequence[Row] = ()
    events: RunEvents = field(default_factory=RunEvents)
    has_whole_clock: bool = True

    def add_row(self, row: Row) -> None:
        """Adds the next row of metrics."""
        self.rows = (*self.rows[1 - RECENT_STEPS :], row)

    @property
    def recorded(self) -> dict[str, Any]:
        """The state, also before the start."""
        return self.state or BEFORE_THE_START

    @property
    def error(self) -> dict[str, Any] | None:
        """The error of a failed run."""
        return self.recorded.get("error")

    @property
    def last(self) -> Row:
        """The last row of metrics. Before the first step, it has no columns."""
        return self.rows[-1] if self.rows else {}

    @property
    def stages(self) -> Sequence[Row]:
        """The planned stages."""
        stages: Sequence[Row] = (self.plan or {"stages": ()})["stages"]
        return stages

    @property
    def step(self) -> int:
        """Optimiser steps taken, saved or not."""
        return int(max(self.recorded["step"], self.last.get("step", 0)))

    @property
    def consumed_samples(self) -> int:
        """Samples that these steps have consumed."""
        return int(max(self.recorded["consumed_samples"], self.last.get("consumed_samples", 0)))

    def tokens(self, *, unit: str) -> int | None:
        """Returns the tokens that these samples hold, or None if they are unknown.

        Args:
            unit: what the run counts. The responses to prompts vary in length.
        """
        return tokens_at(self.plan, self.consumed_samples) if unit == "samples" else None

    @property
    def phase(self) -> str | None:
        """Name of the current phase, or None in a run without phases."""
        return phase_of(self.plan, self.stage)

    @property
    def stage(self) -> int:
        """Number of the current stage, from 0."""
        return int(max(self.recorded["stage"], self.last.get("stage", 0)))

    def planned(self, number: int) -> Row:
        """Returns the plan of a stage. A stage that is not planned has no columns."""
        return next((stage for stage in self.stages if stage["stage"] == number), {})

    @property
    def global_batch_size(self) -> int | None:
        """Samples per step of the stage."""
        last, stage = self.last, self.stage
        row = last if last.get("stage") == stage else self.planned(stage)
        return row.get("global_batch_size")

    @property
    def num_nodes(self) -> int | None:
        """Nodes of the stage, without those that are lost."""
        return self.events.nodes.get(self.stage, self.planned(self.stage).get("num_nodes"))

    @property
    def end_sample(self) -> int | None:
        """Consumed samples at the end of the run, or None if it has no end."""
        end = _end_of(self.stages[-1]) if self.stages else math.inf
        return None if end == math.inf else int(end)

    @property
    def validation_loss(self) -> float | None:
        """Newest validation loss, of the corpus that was validated last."""
        loss: float | None = self.events.newest.get("validation", {}).get("loss")
        return loss

    @property
    def validation_losses(self) -> dict[str, float | None]:
        """Newest validation loss of each named corpus."""
        found = self.events.validations
        return {name: points[-1]["loss"] for name, points in found.items() if name is not None}

    def losses_of_average(self, column: str) -> dict[str, float]:
        """Returns the newest validation loss of an average, by corpus; "" is the only one.

        Args:
            column: one of `LOSSES_OF_AVERAGES`.
        """
        newest = {name or "": points[-1] for name, points in self.events.validations.items()}
        return {name: point[column] for name, point in newest.items() if point[column] is not None}

    @property
    def evaluation(self) -> dict[str, float | None] | None:
        """Newest mean rewards of held-out prompts."""
        newest = self.events.newest.get("evaluation")
        return None if newest is None else {name: newest[name] for name in EVALUATED}

    @property
    def tokens_per_s(self) -> float | None:
        """Median over the last settled steps. Without one, the value of the last step."""
        return self._recent("tokens_per_s")

    @property
    def mfu(self) -> float | None:
        """Median over the same steps, as a share."""
        return self._recent("mfu")

    def _recent(self, column: str) -> float | None:
        return column_median(self._settled or self.rows[-1:], column)

    @property
    def _settled(self) -> Sequence[Row]:
        """The rows that show how fast the run is now."""
        rows = self.rows
        if not rows:
            return ()
        started_at = self.events.newest.get("start", {}).get("step", 0)
        begun_at = self.planned(rows[-1]["stage"]).get("first_step", 0)
        return settled_rows(rows, first_step=max(started_at, begun_at))

    @property
    def step_s(self) -> float | None:
        """Seconds of a step: the median over the last settled steps, or that of the last step."""
        return self._recent("step_time_s")

    @property
    def is_starting(self) -> bool:
        """Whether processes were launched and none of them has started. They may have ended."""
        newest = self.events.newest
        launched, started = (newest.get(kind, {}).get("time", 0.0) for kind in ("launch", "start"))
        return launched > started or not newest

    def quiet_s(self, *, now: float) -> float | None:
        """Returns the seconds since the last step or event, or None if they are unknown.

        Args:
            now: the present time in seconds since 1970.
        """
        if (step_at := self.last_step_at) is None:
            return None
        latest = max(step_at, self.events.ended or 0.0)
        return now - latest if latest else None

    def time_left(self) -> tuple[float | None, float | None]:
        """Returns the seconds until the stage ends, and until the run ends."""
        consumed_samples, settled = self.consumed_samples, self._settled
        newest = self.events.newest
        ahead = [stage for stage in self.stages if _end_of(stage) > consumed_samples]
        if self.stages and not ahead:
            return 0.0, 0.0
        samples_per_s = column_median(settled, "samples_per_s")
        fits = all(stage["world_size"] is not None for stage in ahead)
        if samples_per_s is None or self.plan is None or not ahead or not fits:
            return None, None
        return time_left(
            [StagePlan(**{name: stage[name] for name in STAGE_FIELDS}) for stage in ahead],
            consumed_samples=consumed_samples,
            lengths=self._lengths(ahead, settled[-1]["consumed_samples"]),
            speed=Speed(
                samples_per_s=samples_per_s,
                world_size=settled[-1]["world_size"],
                has_own_devices=newest.get("start", {}).get("device", "cpu") != "cpu",
                boundary_s=self._boundary_s,
            ),
            restarts_always=self.plan.get("restarts_always", True),
        )

    def _lengths(self, ahead: Sequence[Row], consumed_samples: int) -> list[float] | None:
        """Returns the tokens per sample of some stages, as multiples of those of the last step."""
        now = length_at(self.plan, consumed_samples)
        if now is None or not has_several_lengths(self.plan):
            return None
        lengths = [length_at(self.plan, stage["first_sample"] + 1) for stage in ahead]
        return [(length or now) / now for length in lengths]

    @property
    def _boundary_s(self) -> float:
        """Seconds of the last boundary, or before the first one, of starting the processes."""
        start, launch, boundary = (
            self.events.newest.get(kind) for kind in ("start", "launch", "boundary")
        )
        if boundary is not None:
            seconds: float = boundary["lost_s"]
        else:
            seconds = start["time"] - launch["time"] if start and launch else 0.0
        return max(0.0, seconds)

    @property
    def last_step_at(self) -> float | None:
        """When the last step ended, in seconds since 1970: 0 without a row, None if unknown."""
        return self.last.get("time") if self.rows else 0.0

    def time_spent(self, *, now: float | None = None) -> TimeSpent:
        """Returns where the time of the run went. The clock must have heard all events.

        Args:
            now: the present time in seconds since 1970 if the run is training, else None.
        """
        return self.events.clock.spent(last_step_at=self.last_step_at, now=now)


def read_facts(
    directory: RunDirectory, file: EventsFile | None = None, *, most_event_bytes: int | None = 0
) -> RunFacts:
    """Reads the facts of a run from the ends of its files, however long they are.

    Its warnings and validations are those among the newest events. Only the time spent follows from
    all events.

    Args:
        file: its events as far as they have been read, or None if the time spent is not needed.
            They are read to their end, unless more than `most_event_bytes` were added.
        most_event_bytes: None reads any number.

    Raises:
        DamagedFileError: a file of the run is damaged.
        UsageError: a file of the run is a symbolic link.
        OSError: a file of the run cannot be read.
    """
    facts = RunFacts(
        state=directory.read_state(),
        plan=directory.read_plan(),
        rows=last_rows(directory.metrics, RECENT_STEPS),
        has_whole_clock=file is not None and file.read(most_bytes=most_event_bytes),
    )
    begun = islice(read_rows(directory.events), 1)
    facts.events.add(row for row in begun if row["event"] == "branch")
    facts.events.add(last_events(directory.events, NEWEST))
    if file is not None and facts.has_whole_clock:
        facts.events.clock = file.events.clock
    return facts


def _end_of(stage: Row) -> float:
    """Returns the consumed samples at the end of a stage, infinity for a stage without end."""
    return math.inf if stage["samples"] is None else stage["first_sample"] + stage["samples"]


def is_training(directory: RunDirectory, status: str) -> bool | None:
    """Returns whether processes train a run with this status; None if its locks cannot be tried."""
    if status in (COMPLETE, "failed", "damaged"):
        return False
    try:
        return is_held(directory.lock) or is_held(directory.workers_lock)
    except (RampcliError, OSError):
        return None
