"""The critical batch of a run as it was measured, and the schedule that stays below it.

Beyond the critical batch, a larger batch saves few steps or costs loss. It grows during training.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import attrgetter

from rampcli.batch.ramp import RampSchedule, StageExtent, Threshold


@dataclass(frozen=True, slots=True)
class CriticalBatch:
    """A measurement of the critical batch.

    Attributes:
        consumed_samples: progress of the run at which it was measured.
        samples: the critical batch, in samples per step.
        is_lower_bound: it may be larger.
    """

    consumed_samples: int
    samples: float
    is_lower_bound: bool = False


def critical_batch_at(
    measured: Sequence[CriticalBatch], consumed_samples: int
) -> CriticalBatch | None:
    """Returns the newest measurement at `consumed_samples`, or None before the first one.

    A measurement holds until the next one: between two, the critical batch is not guessed.

    Args:
        measured: in ascending order of `consumed_samples`.
    """
    index = bisect_right(measured, consumed_samples, key=attrgetter("consumed_samples"))
    return measured[index - 1] if index else None


def doubling_ramp(
    measured: Sequence[CriticalBatch], *, start: int, largest: int, end_sample: int
) -> RampSchedule:
    """Returns the batch that doubles as soon as twice its size is not above the critical batch.

    A size has to stay at or below all later measurements, too: some are higher by chance.

    Source: batch size warm-up (Merrill et al., arXiv 2505.23971).

    Args:
        measured: in ascending order of `consumed_samples`.
        start: the first batch, in samples per step.
        largest: no batch is above this, in samples per step.
        end_sample: samples of the run. A size that would not get a single whole step is left out.
    """
    thresholds = [Threshold(0, start)]
    least = [*accumulate((one.samples for one in reversed(measured)), min)][::-1]
    for one, samples in zip(measured, least, strict=True):
        size = thresholds[-1].global_batch_size
        while 2 * size <= min(samples, largest):
            size *= 2
        begin = one.consumed_samples
        if size == thresholds[-1].global_batch_size or end_sample - begin < size:
            continue
        if begin == thresholds[-1].first_sample:
            thresholds.pop()
        thresholds.append(Threshold(begin, size))
    return RampSchedule(thresholds=tuple(thresholds))


def samples_beyond(
    stages: Sequence[StageExtent],
    measured: Sequence[CriticalBatch],
    *,
    first_sample: int = 0,
    end_sample: int,
) -> tuple[int, int]:
    """Returns how many samples are beyond the critical batch, and for how many that is unknown.

    A sample is beyond it if the batch of its step is above the measurement that holds there. It is
    unknown before the first measurement, and where the batch is above a lower bound.

    Args:
        stages: those of a run or of a phase, which begins and ends with the given samples.
        measured: in ascending order of `consumed_samples`.
    """
    starts = (*(one.first_sample for one in stages), *(one.consumed_samples for one in measured))
    places = sorted({first_sample, *(start for start in starts if start > first_sample)})
    beyond = unknown = 0
    for begin, end in zip(places, [*places[1:], end_sample], strict=True):
        samples = max(0, min(end, end_sample) - begin)
        stage = stages[bisect_right(stages, begin, key=attrgetter("first_sample")) - 1]
        critical = critical_batch_at(measured, begin)
        if critical is None or (
            critical.is_lower_bound and stage.global_batch_size > critical.samples
        ):
            unknown += samples
        elif stage.global_batch_size > critical.samples:
            beyond += samples
    return beyond, unknown


def from_sample(measured: Sequence[CriticalBatch], first_sample: int) -> Sequence[CriticalBatch]:
    """Returns measurements counted from the first sample of a phase, at which the newest holds."""
    if first_sample == 0:
        return measured
    begun = bisect_right(measured, first_sample, key=attrgetter("consumed_samples"))
    return [
        replace(one, consumed_samples=max(0, one.consumed_samples - first_sample))
        for one in measured[max(0, begun - 1) :]
    ]
