"""Steps, samples and GPU-hours to a target loss over the batch size.

The two curves of Google's Deep Learning Tuning Playbook ("Choosing the batch size"): the steps to a
result fall with the batch, and what they consume rises once the batch is larger than is useful.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from rampcli.batch.quantities import MOST_NAMED, listed
from rampcli.errors import visible
from rampcli.report.plan_tables import as_hours
from rampcli.report.tables import bar, build_table, count, share
from rampcli.report.target_loss import TimeToTarget
from rampcli.settings.by_key import changes
from rampcli.settings.config import Config
from rampcli.settings.facts import BATCH, LEARNING_RATE, LENGTH, RESULT, UPDATES, VALIDATION

COARSE_SHARE = 0.1
"""Share of the steps to the target without a measurement from which on a note says so."""
CURVE_WIDTH = 24
LEFT_OUT_FOR: dict[str, Callable[[TimeToTarget], bool]] = {
    "from a checkpoint of another run: hours before it are unknown": lambda one: one.first_step > 0,
    "whose batch changes": lambda one: len(one.batches) > 1,
    "with this loss at the first measurement": lambda one: (
        one.reached and one.last_step_above is None
    ),
}
"""Why a run is no point of a curve, and whether that holds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPoint:
    """The run of a batch size that reached the target in the fewest steps.

    Attributes:
        global_batch_size: of all of its steps.
        run: its name.
        runs: number of runs with this batch size, whether they reached the target or not.
        steps, last_step_above, samples, running_s, device_s: as in `TimeToTarget`.
        sample_efficiency: samples of the smallest batch size, divided by its own.
    """

    global_batch_size: int
    run: str
    runs: int
    steps: int
    last_step_above: int
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
    keys = [key for key in differing if _matters(key)]
    notes = [*_differences(results, keys)]
    left_out = dict[str, list[str]]()
    usable, runs = list[TimeToTarget](), Counter[int]()
    for one in results:
        reason = next((reason for reason, holds in LEFT_OUT_FOR.items() if holds(one)), None)
        if reason is not None:
            left_out.setdefault(reason, []).append(one.name)
            continue
        runs.update(one.batches)
        if one.reached:
            usable.append(one)
    notes += [
        f"no point for {listed(names, most=MOST_NAMED)}, {why}" for why, names in left_out.items()
    ]
    points = _points(usable, runs)
    if not all(map(_is_tuned, keys)):
        notes.append("no curve over the batch size, because more than the batch differs")
        return BatchCurve(notes=tuple(notes))
    if len(points) < 2:
        notes.append("no curve over the batch size, because it would have fewer than two points")
        return BatchCurve(notes=tuple(notes))
    return BatchCurve(points=points, notes=(*notes, *_doubts(points)))


def _differences(results: Sequence[TimeToTarget], keys: Sequence[str]) -> Iterator[str]:
    """Yields notes about what else differs between runs.

    Args:
        keys: the settings.
    """
    if keys:
        yield f"the runs differ in {listed(keys, most=MOST_NAMED)}"
    for one in results:
        if changed := [key for key in one.changed if _matters(key)]:
            yield f"{one.name} changed {listed(changed, most=MOST_NAMED)} while it trained"
    if len(devices := [*dict.fromkeys(name for one in results for name in one.devices)]) > 1:
        yield f"the hours are of different devices: {listed(devices, most=MOST_NAMED)}"
    if measured := [key for key in keys if key.startswith("data.") or changes(key, VALIDATION)]:
        yield f"losses with different {listed(measured, most=MOST_NAMED)} may not be comparable"


def _doubts(points: Sequence[BatchPoint]) -> Iterator[str]:
    """Yields notes about how far the points of a curve can be trusted."""
    if any(point.runs > 1 for point in points):
        yield "of the runs with the same batch size, that with the fewest steps is a point"
    if len({point.runs for point in points}) > 1:
        yield "a batch size with more runs looks better, because it had more tries"
    if coarse := [point.run for point in points if _is_coarse(point)]:
        yield (
            f"{listed(coarse, most=MOST_NAMED)} may have reached the loss over {COARSE_SHARE:.0%}"
            " of the steps earlier, between two measurements"
        )


def _matters(key: str) -> bool:
    """Returns whether another value may lead to another loss, or to another one measured."""
    return not changes(key, BATCH) and changes(key, RESULT | VALIDATION | LENGTH)


def _is_tuned(key: str) -> bool:
    """Returns whether a setting, with the length of the run, may be tuned for each batch size."""
    return key == Config.seed or changes(key, LEARNING_RATE | UPDATES | LENGTH)


def _is_coarse(point: BatchPoint) -> bool:
    return point.steps - point.last_step_above > COARSE_SHARE * point.steps


def _points(results: Iterable[TimeToTarget], runs: Mapping[int, int]) -> tuple[BatchPoint, ...]:
    """Returns a point for each batch size: its run with the fewest steps.

    Args:
        runs: number of runs of each batch size.
    """
    found = dict[int, TimeToTarget]()
    for one in sorted(results, key=lambda one: one.steps or 0):
        found.setdefault(one.batches[0], one)
    smallest = found[min(found)].samples or 0 if found else 0
    return tuple(
        BatchPoint(
            global_batch_size=size,
            run=one.name,
            runs=runs[size],
            steps=one.steps or 0,
            last_step_above=one.last_step_above or 0,
            samples=one.samples or 0,
            running_s=one.running_s,
            device_s=one.device_s,
            sample_efficiency=smallest / (one.samples or 1),
        )
        for size, one in sorted(found.items())
    )


def curve_table(curve: BatchCurve) -> Table:
    """Returns the points of a curve, one per row, with bars for the steps and the GPU-hours."""
    columns = ("batch", "runs", "steps", "", "samples", "efficiency")
    table = build_table(*columns, "hours", "GPU-hours", "", "run", left=("", "run"))
    most_steps = max(point.steps for point in curve.points)
    most_s = max(point.device_s or 0.0 for point in curve.points)
    for point in curve.points:
        table.add_row(
            count(point.global_batch_size),
            count(point.runs),
            count(point.steps),
            bar(point.steps, most_steps, width=CURVE_WIDTH),
            count(point.samples),
            share(point.sample_efficiency),
            as_hours(point.running_s),
            as_hours(point.device_s),
            bar(point.device_s or 0.0, most_s, width=CURVE_WIDTH),
            Text(visible(point.run)),
        )
    return table
