"""What a page shows of a run, as plain data for JSON."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rampcli.errors import printable, shown
from rampcli.report.standstill_text import standstill_text
from rampcli.runs.decimation import RowNumbers, bucket_edges, fill_buckets
from rampcli.runs.event_kinds import EVALUATED, LOSSES_OF_AVERAGES
from rampcli.runs.events import EventPoint, RunEvents, thin
from rampcli.runs.facts import is_training
from rampcli.runs.followed_run import FollowedRun
from rampcli.runs.metrics import charts_of, tiles_of
from rampcli.runs.recorded_phases import tokens_at
from rampcli.runs.stages import Spans, time_parts
from rampcli.runs.standstill import find_standstill

DEFAULT_BUCKETS, MOST_BUCKETS = 1200, 4000
"""Points per curve that a page gets, and at most asks for."""
X_AXES = ("samples", "tokens", "steps", "time")
HISTOGRAM_BARS = 40
HISTOGRAM_STEPS = 200_000
"""Steps that a histogram counts. Of more, every n-th is counted."""
SLOWEST_SHARE = 0.995
"""Steps beyond this quantile go into the last bar, so that one slow step hides no others."""
DIGITS = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """The part of a run that a page shows.

    Attributes:
        axis: one of `X_AXES`, on which `low` and `high` are places; None for no limit.
        buckets: most points per curve.
    """

    axis: str = "samples"
    low: float | None = None
    high: float | None = None
    buckets: int = DEFAULT_BUCKETS


def run_data(run: FollowedRun, view: View) -> dict[str, Any]:
    """Returns everything that a page shows of a run."""
    facts = run.facts
    trains = is_training(run.directory, facts.recorded["status"])
    places, spans, settings = _Places(run), run.spans, run.settings
    first, end = places.rows_of(view)
    # The speed of a run that does not train, or cannot be read, says nothing about its end.
    is_known = trains and run.damage is None
    last = {name: _number(values[-1]) for name, values in run.metrics.items() if len(values)}
    stage_left_s, run_left_s = facts.time_left() if is_known else (None, None)
    return {
        "name": run.name,
        "version": run.version,
        "reading": round(run.progress, 4),
        "damage": run.damage,
        "unit": settings.unit,
        "parameters": settings.size and settings.size.parameters,
        "embedding_parameters": settings.size and settings.size.embeddings,
        "settings_problem": settings.problem,
        "tokens": facts.tokens(unit=settings.unit),
        "quiet": quiet(run) if trains else None,
        "state": facts.state,
        "end_sample": facts.end_sample,
        "phase": facts.phase,
        "origin": facts.events.origin,
        "stage_left_s": stage_left_s,
        "run_left_s": run_left_s,
        "device": facts.events.device,
        "rows": run.columns.rows,
        "shown": [first, end],
        "settings": {
            printable(key): printable(shown(value)) for key, value in settings.values.items()
        },
        "plan": facts.plan,
        "trained": _trained(run, spans, places),
        "curves": _curves(facts.events, places),
        "marks": _marks(facts.events, places),
        "log": facts.events.log,
        "texts": facts.events.texts + run.texts,
        "spent": _spent(run, spans, time.time() if trains else None),
        "trains": trains,
        "starts": bool(trains) and facts.is_starting,
        "charts": charts_of(run.declared),
        "series": _series(run, places, first, end, view.buckets),
        "histogram": _histogram(run, first, end),
        "last": last,
        "tiles": tiles_of(last),
    }


def quiet(run: FollowedRun) -> str | None:
    """Returns what is said of a run that trains and takes no steps, or None."""
    found = find_standstill(run.directory, run.facts, now=time.time())
    return None if found is None else standstill_text(found)


class _Places:
    """Places of rows on the axes.

    Attributes:
        columns: places of all rows by axis. They do not decrease in a sound run.
    """

    def __init__(self, run: FollowedRun) -> None:
        self.run = run
        self.rows = run.columns.rows
        self.started = run.facts.events.started
        self.plan = run.facts.plan
        self.columns = {
            "samples": run.column("consumed_samples"),
            "tokens": self._tokens(),
            "steps": run.column("step"),
            "time": self._times(),
        }

    def at(self, rows: RowNumbers) -> dict[str, list[float | None]]:
        """Returns the places of some rows on all axes."""
        return {axis: _numbers(self.columns[axis][rows], digits=15) for axis in X_AXES}

    def rows_of(self, view: View) -> tuple[int, int]:
        """Returns the first row in view and the row behind the last, with a neighbour each."""
        if self.rows == 0 or (view.low is None and view.high is None):
            return 0, self.rows
        column = self.columns[view.axis]
        first = 0 if view.low is None else int(np.searchsorted(column, view.low)) - 1
        end = self.rows
        if view.high is not None:
            end = int(np.searchsorted(column, view.high, side="right")) + 1
        first = min(max(0, first), self.rows - 1)
        return first, min(max(first + 1, end), self.rows)

    def of_points(self, points: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
        """Returns the places of events on all axes."""
        steps, samples, times = (
            np.array([point[name] for point in points], dtype=np.float64)
            for name in ("step", "samples", "time")
        )
        counted = [] if self._counts_responses() else [point["samples"] for point in points]
        tokens = [found for one in counted if (found := tokens_at(self.plan, one)) is not None]
        has_tokens = len(tokens) == len(points)
        places = {
            "samples": samples,
            "steps": steps,
            "tokens": np.array(tokens, float) if has_tokens else self._at_steps("tokens", steps),
            "time": times - self.started
            if "time" in self.run.columns and self.started is not None
            else self._at_steps("time", steps),
        }
        return {axis: _numbers(places[axis], digits=15) for axis in X_AXES}

    def _at_steps(self, axis: str, steps: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.rows == 0:
            return np.zeros(len(steps))
        rows = np.searchsorted(self.run.column("step"), steps, side="right") - 1
        places: NDArray[np.float64] = np.where(rows < 0, 0.0, self.columns[axis][rows])
        return places

    def _counts_responses(self) -> bool:
        """Returns whether rows do not say how many tokens were consumed, as responses vary."""
        return "consumed_tokens" not in self.run.columns or (
            self.rows > 0 and np.isnan(self.run.column("consumed_tokens")[-1])
        )

    def _tokens(self) -> NDArray[Any]:
        if not self._counts_responses():
            return self.run.column("consumed_tokens")
        rate, time_s = (self.run.column(name) for name in ("tokens_per_s", "step_time_s"))
        return np.cumsum(rate.astype(np.float64) * time_s)

    def _times(self) -> NDArray[Any]:
        if "time" in self.run.columns and self.started is not None:
            elapsed = self.run.column("time") - self.started
            if not np.isnan(elapsed).any():
                return elapsed
        return np.cumsum(self.run.column("step_time_s"), dtype=np.float64)


def _series(
    run: FollowedRun, places: _Places, first: int, end: int, buckets: int
) -> dict[str, Any]:
    """Returns the charted columns of some rows, in buckets if there are many."""
    if end <= first:
        return {"x": {axis: [] for axis in X_AXES}, "columns": {}, "bucket_rows": 0}
    edges = bucket_edges(first, end, most=max(1, min(buckets, MOST_BUCKETS)))
    is_whole = len(edges) - 1 == end - first
    columns = {}
    for name, blocks in run.blocks.items():
        mean, low, high = fill_buckets(run.column(name), edges, blocks)
        if np.isnan(low).all():
            continue
        columns[name] = {"mean": _numbers(mean)}
        if not is_whole:
            columns[name] |= {"low": _numbers(low), "high": _numbers(high)}
    rows = (end - first) / (len(edges) - 1)
    return {"x": places.at(edges[1:] - 1), "columns": columns, "bucket_rows": round(rows, 1)}


def _trained(run: FollowedRun, spans: Spans, places: _Places) -> dict[str, Any]:
    """Returns the parts of a run in which stage, batch and processes stayed the same.

    `edges` has one place more than there are parts, on each axis.
    """
    if len(spans.starts) == 0:
        return {"parts": [], "edges": {axis: [] for axis in X_AXES}}
    tokens, steps_s = spans.seconds("tokens_per_s")
    with np.errstate(all="ignore"):  # seconds that a damaged file has may be too small to divide by
        rates = tokens / steps_s
    columns = {
        "stage": spans.stage,
        "global_batch_size": spans.global_batch_size,
        "world_size": spans.world_size,
        "steps": spans.steps,
        "samples": spans.samples,
        "steps_s": steps_s,
        "tokens_per_s": rates,
        "loss": run.column("loss")[spans.ends - 1],
    }
    parts = [
        dict(zip(columns, map(_number, values), strict=True))
        for values in zip(*columns.values(), strict=True)
    ]
    at = places.at(spans.ends - 1)
    begin = _beginnings(run, places)
    return {"parts": parts, "edges": {axis: [begin[axis], *at[axis]] for axis in X_AXES}}


def _beginnings(run: FollowedRun, places: _Places) -> dict[str, float]:
    """Returns where the first step began on each axis."""
    samples = run.column("consumed_samples")[0] - run.column("global_batch_size")[0]
    begin = {
        "samples": float(max(0, samples)),
        "steps": float(run.column("step")[0] - 1),
        "time": float(places.columns["time"][0] - run.column("step_time_s")[0]),
    }
    begin["tokens"] = float(tokens_at(places.plan, int(begin["samples"])) or 0)
    return begin


def _curves(events: RunEvents, places: _Places) -> dict[str, Any]:
    """Returns validation losses and results of evaluations: places, and values or None."""
    curves = {}
    for corpus, points in events.validations.items():
        of = "" if corpus is None else f": {printable(corpus)}"
        curves[f"validation{of}"] = points, "loss"
        for column, of_average in LOSSES_OF_AVERAGES.items():
            if known := [point for point in points if point[column] is not None]:
                curves[f"validation {of_average}{of}"] = known, column
        if known := [point for point in points if point["bits_per_byte"] is not None]:
            curves[f"bits per byte{of}"] = known, "bits_per_byte"
    curves |= {name: (events.evaluations, name) for name in EVALUATED if events.evaluations}
    return {name: _curve(*found, places) for name, found in curves.items()}


def _curve(points: list[EventPoint], column: str, places: _Places) -> dict[str, Any]:
    """Returns a curve: the places and values of its points, and the last value that is known."""
    shown = thin(points)
    values = [point[column] for point in shown]
    last = next((value for value in reversed(values) if value is not None), None)
    return {"x": places.of_points(shown), "y": values, "last": last}


def _marks(events: RunEvents, places: _Places) -> dict[str, Any]:
    """Returns the marks by kind: their places, their texts, and how many there are in all."""
    marks = {}
    for kind, points in events.marks.items():
        shown = thin(points)
        texts = [point["text"] for point in shown]
        marks[kind] = {"x": places.of_points(shown), "text": texts, "count": len(points)}
    return marks


def _spent(run: FollowedRun, spans: Spans, now: float | None) -> dict[str, Any] | None:
    """Returns where the time of a run went; training is divided by what its steps recorded."""
    if run.facts.events.started is None or run.columns.rows == 0:
        return None
    spent = run.facts.time_spent(now=now)
    seconds = time_parts(spent, run.facts, spans, run.directory, unit=run.settings.unit)
    return {
        "parts": [{"name": name, "s": _number(s)} for name, s in seconds.items()],
        "total_s": _number(spent.elapsed_s),
        "running_s": _number(spent.running_s),
        "goodput": None if spent.goodput is None else _number(spent.goodput),
    }


def _histogram(run: FollowedRun, first: int, end: int) -> dict[str, Any] | None:
    """Returns how many steps took how long: edges of the bars in seconds, and counts."""
    if end <= first:
        return None
    stride = -(-(end - first) // HISTOGRAM_STEPS)
    times = run.column("step_time_s")[first:end:stride].astype(np.float64)
    least, most = float(times.min()), float(np.quantile(times, SLOWEST_SHARE))
    slower = int((times > most).sum())
    if most <= least:
        most = least * 1.01
    counts, edges = np.histogram(times, bins=HISTOGRAM_BARS, range=(least, most))
    return {
        "edges": _numbers(edges),
        "counts": counts.tolist(),
        "slower": slower,
        "most": _number(float(times.max())),
        "stride": stride,
        "median": _number(float(np.median(times))),
    }


def _numbers(values: Iterable[Any], *, digits: int = DIGITS) -> list[float | None]:
    """Returns numbers for JSON, which has no NaN, nor infinity, rounded to some digits."""
    pattern = f"%.{digits}g"
    return [float(pattern % value) if math.isfinite(value) else None for value in values]


def _number(value: Any) -> float | int | None:
    """Returns one number for JSON. Whole numbers stay exact."""
    if isinstance(value, int | np.integer):
        return int(value)
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
