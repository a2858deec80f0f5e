"""How long a run still takes, estimated from the steps that it has just taken."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from rampcli.batch.throughput import restarts_at
from rampcli.batch.training_plan import StagePlan

FIRST_STEPS = 2
"""Steps after a start, and at the beginning of a stage, that do not count: caches are still empty,
and torch may compile."""
RECENT_STEPS = 50
"""Steps over which medians are taken, at most."""


def settled_rows(
    rows: Sequence[Mapping[str, Any]], *, first_step: int
) -> Sequence[Mapping[str, Any]]:
    """Returns the rows among the last ones that show how fast the run is now.

    They have the stage and the processes of the last row. The first steps do not count.

    Args:
        rows: rows of metrics.jsonl, in order.
        first_step: steps taken before the stage began or the processes started, whichever is later.
    """
    kinds = [(row["stage"], row["world_size"]) for row in rows]
    settled = [
        row
        for row, kind in zip(rows, kinds, strict=True)
        if kind == kinds[-1] and row["step"] > first_step + FIRST_STEPS
    ]
    return settled[-RECENT_STEPS:]


def column_median(rows: Sequence[Mapping[str, Any]], column: str) -> float | None:
    """Returns the median of a column, or None if no row has a value."""
    values = [row[column] for row in rows if row.get(column) is not None]
    return float(median(values)) if values else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """How fast a run trains.

    Attributes:
        world_size: processes that trained at this speed.
        has_own_devices: True if more processes are faster, because each has a device. Nodes that
            one machine emulates share its processors.
        boundary_s: seconds from the last step before a boundary to the first one after it.
    """

    samples_per_s: float
    world_size: int
    has_own_devices: bool
    boundary_s: float

    def seconds(self, stage: StagePlan, samples: int) -> float:
        """Returns the seconds that some samples of a stage take."""
        growth = stage.world_size / self.world_size if self.has_own_devices else 1.0
        return samples / (self.samples_per_s * growth)


def time_left(
    stages: Sequence[StagePlan],
    *,
    consumed_samples: int,
    speed: Speed,
    restarts_always: bool,
    lengths: Sequence[float] | None = None,
) -> tuple[float | None, float | None]:
    """Returns the seconds until the first of some stages ends, and until the last one does.

    None stands for a stage that has no end. Validations and checkpoints are not counted.

    Args:
        stages: the current stage and all later ones.
        consumed_samples: samples that the run has consumed.
        speed: how fast the run trains.
        restarts_always: processes end at every boundary, not only if their number changes.
        lengths: lengths of the stages' samples, as multiples of those that were trained at this
            speed; None if they are the same. The time of a sample is taken to grow like its length.
    """
    seconds = [
        None
        if stage.end_sample is None
        else speed.seconds(stage, stage.end_sample - max(stage.first_sample, consumed_samples))
        * length
        for stage, length in zip(stages, lengths or [1.0] * len(stages), strict=True)
    ]
    restarts = sum(
        restarts_at(one.world_size, other.world_size, always=restarts_always)
        for one, other in pairwise(stages)
    )
    known = [each for each in seconds if each is not None]
    whole = sum(known) + restarts * speed.boundary_s
    return seconds[0], whole if len(known) == len(seconds) else None
