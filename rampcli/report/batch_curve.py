"""Steps, samples and GPU-hours to a target loss over the batch size.

The two curves of Google's Deep Learning Tuning Playbook ("Choosing the batch size"): the steps to a
result fall with the batch, and what they consume rises once the batch is larger than is useful.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from rampcli.batch.plan import GLOBAL_KEY
from rampcli.batch.quantities import listed
from rampcli.batch.ramp import RAMP_KEY
from rampcli.batch.step_schedule import SCHEDULE_KEY
from rampcli.config import snapshot
from rampcli.errors import visible
from rampcli.report.plan_tables import as_hours
from rampcli.report.tables import build_table, count, share
from rampcli.report.target_loss import TimeToTarget

OF_THE_BATCH = (GLOBAL_KEY, RAMP_KEY, SCHEDULE_KEY)
OF_THE_LENGTH = ("trainer.max_steps", "trainer.max_samples", "trainer.max_tokens")
OF_THE_LOSS = ("data.", "trainer.max_val_samples")
"""Settings, and a section, that change which losses are measured."""
TUNED = ("optim.", "schedule.", "seed", "trainer.gradient_clip_val", *OF_THE_LENGTH)
"""Settings, and sections, that may be tuned for each batch size."""
MOST_NAMED = 3
BAR_WIDTH = 24


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPoint:
    """The run of a batch size that reached the target in the fewest steps.

    Attributes:
        global_batch_size: of all of its steps.
        run: its name.
        steps, samples, running_s, device_s: as in `TimeToTarget`.
        sample_efficiency: samples of the smallest batch size, divided by its own.
    """

    global_batch_size: int
    run: str
    steps: int
    samples: int
    running_s: float | None
    device_s: float | None
    sample_efficiency: float

    def to_json(self) -> dict[str, Any]:
        """Returns the facts for `--json`."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchCurve:
    """Points in order of their batch size, and what there is to say about them.

    Attributes:
        points: at least two; empty if there is no curve.
        notes: why there is no curve, or what differs beside the batch.
    """

    points: tuple[BatchPoint, ...] = ()
    notes: tuple[str, ...] = ()


def batch_curve(results: Sequence[TimeToTarget], differing: Collection[str]) -> BatchCurve:
    """Returns the curve over the batch sizes of runs.

    Args:
        results: of the runs.
        differing: settings in which they differ.
    """
    keys = [
        key
        for key in differing
        if (snapshot.decides(key) or key.startswith((*OF_THE_LENGTH, *OF_THE_LOSS)))
        and key not in (*OF_THE_BATCH, *snapshot.NOT_DECIDING)
    ]
    notes = [f"the runs differ in {listed(keys, most=MOST_NAMED)}"] if keys else []
    if measured := [key for key in keys if key.startswith(OF_THE_LOSS)]:
        with_them = listed(measured, most=MOST_NAMED)
        notes.append(f"losses with different {with_them} may not be comparable")
    if any(not key.startswith(TUNED) for key in keys):
        notes.append("no curve over the batch size, because more than the batch differs")
        return BatchCurve(notes=tuple(notes))
    if varying := [one.name for one in results if len(one.batches) > 1]:
        notes.append(f"no point for {listed(varying, most=MOST_NAMED)}, whose batch grows")
    if early := [one.name for one in results if one.steps == 0]:
        notes.append(f"no point for {listed(early, most=MOST_NAMED)}, with this loss at step 0")
    usable = [one for one in results if one.reached and one.steps and len(one.batches) == 1]
    points = _points(usable)
    if len(points) < 2:
        notes.append("no curve over the batch size, because it would have fewer than two points")
        return BatchCurve(notes=tuple(notes))
    if len(points) < len(usable):
        notes.append("of the runs with the same batch size, that with the fewest steps is a point")
    return BatchCurve(points=points, notes=tuple(notes))


def _points(results: Iterable[TimeToTarget]) -> tuple[BatchPoint, ...]:
    """Returns a point for each batch size: its run with the fewest steps."""
    found = dict[int, TimeToTarget]()
    for one in sorted(results, key=lambda one: one.steps or 0):
        found.setdefault(one.batches[0], one)
    smallest = found[min(found)].samples or 0 if found else 0
    return tuple(
        BatchPoint(
            global_batch_size=size,
            run=one.name,
            steps=one.steps or 0,
            samples=one.samples or 0,
            running_s=one.running_s,
            device_s=one.device_s,
            sample_efficiency=smallest / (one.samples or 1),
        )
        for size, one in sorted(found.items())
    )


def curve_table(curve: BatchCurve) -> Table:
    """Returns the points of a curve, one per row, with bars for the steps and the GPU-hours."""
    columns = ("batch", "steps", "", "samples", "efficiency", "hours", "GPU-hours", "", "run")
    table = build_table(*columns, left=("", "run"))
    most_steps = max(point.steps for point in curve.points)
    most_s = max(point.device_s or 0.0 for point in curve.points)
    for point in curve.points:
        table.add_row(
            count(point.global_batch_size),
            count(point.steps),
            _bar(point.steps, most_steps),
            count(point.samples),
            share(point.sample_efficiency),
            as_hours(point.running_s),
            as_hours(point.device_s),
            _bar(point.device_s or 0.0, most_s),
            Text(visible(point.run)),
        )
    return table


def _bar(value: float, most: float) -> str:
    return "█" * max(1, round(BAR_WIDTH * value / most)) if value > 0 else ""
