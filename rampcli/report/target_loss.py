"""When runs have reached a loss: their steps, samples, hours and GPU-hours."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from rampcli.batch.quantities import MOST_NAMED, listed
from rampcli.errors import printable
from rampcli.report.plan_tables import as_hours
from rampcli.report.tables import count, ends, figure, table_of
from rampcli.runs.metrics import LAST_STEPS
from rampcli.runs.record import RunRecord
from rampcli.runs.recorded_phases import tokens_at
from rampcli.runs.time_spent import time_until

Numbers = NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """The loss that is compared with the target, the same for all runs.

    Attributes:
        corpus: name of the validation corpus, "" for the only one; None for the training loss.
        window_samples: samples over which the training loss is averaged, at least; None for a
            validation loss.
    """

    corpus: str | None
    window_samples: int | None

    def __str__(self) -> str:
        if self.corpus is None:
            return (
                f"training loss, averaged over {self.window_samples:,} samples or more"
                f" ({LAST_STEPS} steps of the largest batch)"
            )
        return f"validation loss {self.corpus}".strip()


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeToTarget:
    """What a run needed to reach the target. Unknown values are None.

    Attributes:
        name, path: of the run.
        batches: the smallest and the largest batch size up to there, or in all; one if they are the
            same.
        reached: whether the loss was at the target or below.
        first_step: steps before its own: it starts from a checkpoint of another run. 0 if not.
        last_step: steps in all.
        changed: settings that were changed while it trained, up to there or in all.
        steps, samples, tokens: consumed when it was first measured there; None if it was not.
        running_s: seconds that the run had run by then, over all attempts. None if it starts from
            another run, whose seconds are not known.
        device_s: the same times the processes.
        devices: names of the devices on which it trained up to there.
        last_step_above: step of the measurement before, where the loss was still above.
        above_again_at: step of the first later measurement above the target or not finite.
        best: lowest loss that was measured.
    """

    name: str
    path: str
    batches: tuple[int, ...]
    reached: bool
    first_step: int = 0
    last_step: int = 0
    changed: tuple[str, ...] = ()
    steps: int | None = None
    samples: int | None = None
    tokens: int | None = None
    running_s: float | None = None
    device_s: float | None = None
    devices: tuple[str, ...] = ()
    last_step_above: int | None = None
    above_again_at: int | None = None
    best: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the facts for `--json`."""
        return asdict(self)


def measure_of(records: Sequence[RunRecord]) -> Measure:
    """Returns the validation loss of the first corpus that all runs have, or the training loss.

    Runs without a step have no say.
    """
    trained = [record for record in records if record.facts.step] or records
    of_runs = [[corpus or "" for corpus in record.facts.events.validations] for record in trained]
    for corpus in of_runs[0]:
        if all(corpus in corpora for corpora in of_runs):
            return Measure(corpus=corpus, window_samples=None)
    sizes = [record.metrics["global_batch_size"] for record in records if record.metrics]
    largest = max((int(each.max()) for each in sizes if len(each)), default=1)
    return Measure(corpus=None, window_samples=LAST_STEPS * largest)


def measure_notes(records: Sequence[RunRecord], measure: Measure) -> tuple[str, ...]:
    """Returns why the training loss is compared although some runs have a validation loss."""
    without = [record.name for record in records if not record.facts.events.validations]
    if measure.corpus is not None or len(without) == len(records):
        return ()
    if without:
        names = listed(without, most=MOST_NAMED)
        return (f"validation losses are not compared, because there are none of {names}",)
    return ("validation losses are not compared, because no corpus is the same in all runs",)


def time_to_target(record: RunRecord, target: float, measure: Measure) -> TimeToTarget:
    """Returns what a run needed until the loss was first measured at the target or below."""
    points = _validations(record, measure) if measure.corpus is not None else None
    steps, samples, times, losses = points or _smoothed(record, measure.window_samples or 1)
    at = next(iter(np.flatnonzero(losses <= target).tolist()), None)
    known = losses[~np.isnan(losses)]
    best = float(known.min()) if len(known) else None
    sizes = record.metrics.get("global_batch_size", np.zeros(0))
    starts = [event for event in record.events if event["event"] == "start"]
    first_step = int(starts[0]["step"]) if starts else 0
    changes = record.facts.events.changes
    facts: dict[str, Any] = {
        "name": record.name,
        "path": str(record.path),
        "first_step": first_step,
        "last_step": record.facts.step,
        "best": best,
    }
    if at is None:
        changed = tuple(dict.fromkeys(change["setting"] for change in changes))
        return TimeToTarget(**facts, batches=_range(sizes), reached=False, changed=changed)
    running_s, device_s = None, None
    if not np.isnan(times[at]) and first_step == 0:
        running_s, device_s = time_until(record.events, float(times[at]))
    above, above_again = steps[:at][losses[:at] > target], steps[at:][~(losses[at:] <= target)]
    taken = np.searchsorted(record.metrics.get("step", sizes), max(1, steps[at]), side="right")
    return TimeToTarget(
        **facts,
        batches=_range(sizes[:taken]),
        reached=True,
        changed=tuple(dict.fromkeys(one["setting"] for one in changes if one["step"] < steps[at])),
        steps=int(steps[at]),
        samples=int(samples[at]),
        tokens=tokens_at(record.plan, int(samples[at])),
        running_s=running_s,
        device_s=device_s,
        devices=_devices(starts, until=float(times[at])),
        last_step_above=int(above[-1]) if len(above) else None,
        above_again_at=int(above_again[0]) if len(above_again) else None,
    )


def target_table(results: Sequence[TimeToTarget], *, is_validated: bool) -> Table:
    """Returns a table with one run per row.

    Args:
        is_validated: show the step of the validation before the target, too.
    """
    columns: dict[str, Callable[[TimeToTarget], str]] = {
        "run": lambda one: one.name,
        "batch": lambda one: ends(one.batches),
        "steps": lambda one: count(one.steps),
        "above until": lambda one: count(one.last_step_above),
        "samples": lambda one: count(one.samples),
        "tokens": lambda one: count(one.tokens),
        "hours": lambda one: as_hours(one.running_s),
        "GPU-hours": lambda one: as_hours(one.device_s),
        "": _outcome,
    }
    if not is_validated:
        del columns["above until"]
    return table_of(results, columns, left=("run", ""))


def _outcome(one: TimeToTarget) -> str:
    if one.reached:
        again = one.above_again_at
        return "" if again is None else f"above again at step {again:,}"
    if one.best is None:
        return "not measured"
    return f"not reached by step {one.last_step:,} (best {figure(one.best)})"


def _devices(starts: Sequence[Mapping[str, Any]], *, until: float) -> tuple[str, ...]:
    """Returns the names of the devices of the starts up to a time, or of all if it is NaN."""
    names = (
        start.get("device_name") or start.get("device")
        for start in starts
        if not start["time"] > until
    )
    return tuple(dict.fromkeys(printable(name) for name in names if name))


def _validations(record: RunRecord, measure: Measure) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Returns steps, samples, times and losses of the validations of a corpus."""
    points = record.facts.events.validations.get(measure.corpus or None, [])
    columns = ([point[name] for point in points] for name in ("step", "samples", "time", "loss"))
    steps, samples, times, losses = (np.array(each, dtype=np.float64) for each in columns)
    return steps, samples, times, losses


def _smoothed(record: RunRecord, window: int) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Returns steps, samples, times and smoothed training losses of the steps.

    The loss of a step is the mean over the steps that hold the last `window` samples. It is NaN if
    there were fewer, or if one of their losses is not finite.
    """
    empty = np.zeros(0)
    steps, samples, sizes, losses = (
        record.metrics.get(name, empty)
        for name in ("step", "consumed_samples", "global_batch_size", "loss")
    )
    times = record.metrics.get("time", np.full(len(steps), np.nan))
    if not len(steps):
        return steps, samples, times, losses
    first = np.searchsorted(samples, samples - window, side="right")

    def over_window(values: Numbers) -> Numbers:
        sums = np.concatenate(([0.0], np.cumsum(values, dtype=np.float64)))
        return sums[1:] - sums[first]

    is_known = np.isfinite(losses)
    is_whole = (samples - window >= samples[0] - sizes[0]) & (over_window(~is_known) == 0)
    means = over_window(np.where(is_known, losses, 0.0) * sizes) / over_window(sizes)
    return steps, samples, times, np.where(is_whole, means, np.nan)


def _range(sizes: Numbers) -> tuple[int, ...]:
    return tuple(sorted({int(sizes.min()), int(sizes.max())})) if len(sizes) else ()
