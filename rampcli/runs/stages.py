"""What a run has trained: its stages and phases beside their plan, and where their time went."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rampcli.files.records import read_json
from rampcli.runs.decimation import RowNumbers, change_rows
from rampcli.runs.directory import TUNE_FOLDER, RunDirectory
from rampcli.runs.event_kinds import LOSSES_OF_AVERAGES, TimePart
from rampcli.runs.facts import RunFacts
from rampcli.runs.metrics import LAST_STEPS, STAGE_METRICS, Metric
from rampcli.runs.recorded_phases import phase_of, recorded_phases
from rampcli.runs.time_spent import TimeSpent

SPAN_COLUMNS = ("stage", "global_batch_size", "world_size")

Metrics = Mapping[str, NDArray[Any]]
"""Columns of numbers by name, with NaN for null."""
EXCHANGE_SHAPE = {"exchange_share?": (float, None)}
"""Shape of diagnosis.json, as far as reports rely on it."""


class Spans:
    """The spans of a run: steps in which stage, batch and processes stayed the same.

    Attributes:
        starts, ends: first row of each span, and the row behind its last one.
        stage, global_batch_size, world_size: of each span.
        steps, samples: number of its steps, and their samples.
    """

    def __init__(self, metrics: Metrics, changes: RowNumbers | None = None) -> None:
        """Takes the first rows of the spans after the first one, or finds them if not given."""
        rows = len(metrics["stage"]) if "stage" in metrics else 0
        starts = np.zeros(min(1, rows), dtype=np.int64)
        if rows:
            if changes is None:
                changes = change_rows(*(metrics[name] for name in SPAN_COLUMNS))
            starts = np.concatenate((starts, changes))
        self.metrics, self.starts = metrics, starts
        self.ends = np.append(starts[1:], rows)[: len(starts)]
        self.stage, self.global_batch_size, self.world_size = (
            metrics[name][starts].astype(np.int64) if rows else starts for name in SPAN_COLUMNS
        )
        self.steps = self.ends - self.starts
        self.samples = self.steps * self.global_batch_size
        self.seconds = cache(self._seconds)

    def _seconds(self, rate: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns, by span, the sums of a rate times the seconds of steps, and of these seconds.

        Steps without a value of the rate do not count.
        """
        if len(self.starts) == 0 or rate not in self.metrics:
            return np.zeros(len(self.starts)), np.zeros(len(self.starts))
        values, times = self.metrics[rate], self.metrics["step_time_s"]
        known = ~np.isnan(values)
        if not known.all():
            values, times = np.where(known, values, 0.0), np.where(known, times, 0.0)
        return (
            np.add.reduceat(values * times, self.starts, dtype=np.float64),
            np.add.reduceat(times, self.starts, dtype=np.float64),
        )

    def mean_rate(self, rate: str, which: Any = slice(None)) -> float | None:
        """Returns the mean of a rate over the time of some spans, or None if it is unknown."""
        total, seconds = (float(sums[which].sum()) for sums in self.seconds(rate))
        return total / seconds if seconds > 0 else None

    def figure(self, metric: Metric, which: Any = slice(None)) -> float | None:
        """Returns the figure that summarises a metric over some spans, or None without a value."""
        if metric.summary == "rate":
            return self.mean_rate(metric.name, which)
        chosen = np.zeros(len(self.starts), dtype=np.bool_)
        chosen[which] = True
        most = LAST_STEPS if metric.summary == "last" else len(self.metrics.get(metric.name, ()))
        values = self.last_values(metric.name, chosen, most)
        if not values or metric.summary is None:
            return None
        return max(values) if metric.summary == "max" else sum(values) / len(values)

    def sum_of(self, column: str) -> float:
        """Returns the sum of a column over all steps that have a value."""
        return float(np.nansum(self.metrics.get(column, np.zeros(0)), dtype=np.float64))

    def last_values(self, column: str, which: NDArray[np.bool_], count: int) -> list[float]:
        """Returns the values, without NaN, in the last `count` rows of some spans."""
        if column not in self.metrics:
            return []
        found = list[float]()
        for index in np.flatnonzero(which)[::-1]:
            first = max(self.starts[index], self.ends[index] - count)
            found = self.metrics[column][first : self.ends[index]].tolist() + found
            count -= int(self.ends[index] - first)
            if count == 0:
                break
        return [value for value in found if value == value]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedStage:
    """A stage as it was planned and as it was trained. Unknown values are None.

    Attributes:
        stage: its number, from 0.
        global_batch_size: samples per step.
        pairs: responses per step, in reinforcement learning.
        planned_nodes, planned_samples, planned_steps: as planned.
        nodes: nodes on which its processes ran last.
        world_sizes: numbers of processes that have trained it.
        is_inherited: the run begins after it, at a checkpoint of another run.
        samples, steps: as trained.
        figures: figures of the metrics of `STAGE_METRICS` by name.
    """

    stage: int
    global_batch_size: int
    pairs: int | None
    planned_nodes: int | None
    planned_samples: int | None
    planned_steps: int | None
    nodes: int | None
    world_sizes: list[int]
    is_inherited: bool
    samples: int
    steps: int
    figures: dict[str, float | None]

    def to_json(self) -> dict[str, Any]:
        """Returns the facts for `--json`, with each figure beside them."""
        facts = asdict(self)
        del facts["figures"]
        return facts | self.figures


def trained_stages(facts: RunFacts, spans: Spans) -> list[TrainedStage]:
    """Returns the stages of the plan, and stages that were trained under an earlier plan."""
    planned = {stage["stage"]: stage for stage in facts.stages}
    numbers = sorted({*planned, *spans.stage.tolist()})
    return [_stage(number, planned.get(number, {}), facts, spans) for number in numbers]


def _stage(number: int, planned: Mapping[str, Any], facts: RunFacts, spans: Spans) -> TrainedStage:
    which = spans.stage == number
    sizes = [planned.get("global_batch_size", 0), *spans.global_batch_size[which].tolist()]
    pairs = spans.last_values("pairs", which, 1)
    steps, origin = int(spans.steps[which].sum()), facts.events.origin
    end_step = planned.get("first_step", 0) + (planned.get("steps") or math.inf)
    return TrainedStage(
        stage=number,
        global_batch_size=sizes[-1],
        pairs=int(pairs[0]) if pairs else None,
        planned_nodes=planned.get("num_nodes"),
        planned_samples=planned.get("samples"),
        planned_steps=planned.get("steps"),
        nodes=facts.events.nodes.get(number),
        world_sizes=np.unique(spans.world_size[which]).tolist(),
        is_inherited=not steps and origin is not None and end_step <= origin["step"],
        samples=int(spans.samples[which].sum()),
        steps=steps,
        figures={one.name: spans.figure(one, which) for one in STAGE_METRICS},
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedPhase:
    """A phase as it was planned and as it was trained. Unknown values are None.

    Attributes:
        name: its name.
        sequence_length: tokens per sample.
        global_batch_sizes: samples per step of each of its stages.
        steps, planned_steps: as trained and as planned.
        is_inherited: the run begins after it, at a checkpoint of another run.
        end_token: tokens of the run where the phase ends.
        end_sample: samples of the run there, or prompts.
        loss: mean over its last steps, in nats per token; None before its end.
        reward: mean over its last steps, in reinforcement learning; None before its end.
        validation_losses: of the validation after its last step: "loss" and the columns of
            `LOSSES_OF_AVERAGES`, each by corpus; "" is the only one. Corpora without a finite loss
            are left out.
    """

    name: str
    sequence_length: int
    global_batch_sizes: list[int]
    steps: int
    planned_steps: int | None
    is_inherited: bool
    end_token: int | None
    end_sample: int | None
    loss: float | None
    reward: float | None
    validation_losses: dict[str, dict[str, float]]


def trained_phases(
    facts: RunFacts,
    stages: Iterable[TrainedStage],
    events: Sequence[Mapping[str, Any]],
    *,
    unit: str,
) -> list[TrainedPhase]:
    """Returns the phases of a run, or nothing if it has none.

    Args:
        facts: what the run has done.
        stages: from `trained_stages`.
        events: rows of events.jsonl.
        unit: what the run counts. The responses to prompts vary in length.
    """
    by_phase: dict[str | None, list[TrainedStage]] = {}
    for stage in stages:
        by_phase.setdefault(phase_of(facts.plan, stage.stage), []).append(stage)
    return [
        _trained(phase, by_phase.get(phase["name"], []), facts, events, unit)
        for phase in recorded_phases(facts.plan)
    ]


def _trained(
    phase: Mapping[str, Any],
    stages: Sequence[TrainedStage],
    facts: RunFacts,
    events: Sequence[Mapping[str, Any]],
    unit: str,
) -> TrainedPhase:
    end = None if phase["samples"] is None else phase["first_sample"] + phase["samples"]
    has_ended = end is not None and end <= facts.consumed_samples
    # The next phase may have validated after the same step, on samples of its own.
    newest = {
        row.get("corpus") or "": row
        for row in events
        if row["event"] == "validation"
        and row.get("phase") == phase["name"]
        and row["consumed_samples"] == end
    }
    figures = stages[-1].figures if stages and has_ended else {}
    return TrainedPhase(
        name=phase["name"],
        sequence_length=phase["sequence_length"],
        global_batch_sizes=[stage.global_batch_size for stage in stages],
        steps=sum(stage.steps for stage in stages),
        planned_steps=phase["steps"],
        is_inherited=bool(stages) and all(stage.is_inherited for stage in stages),
        end_token=None
        if phase["tokens"] is None or unit == "prompts"
        else phase["first_token"] + phase["tokens"],
        end_sample=end,
        loss=figures.get("loss"),
        reward=figures.get("reward"),
        validation_losses={
            column: {
                corpus: row[column] for corpus, row in newest.items() if row.get(column) is not None
            }
            for column in ("loss", *LOSSES_OF_AVERAGES)
        },
    )


def time_parts(
    spent: TimeSpent, facts: RunFacts, spans: Spans, directory: RunDirectory, *, unit: str
) -> dict[str, float]:
    """Returns the parts of the time of a run in seconds, without those that took no time.

    They add up to the time of `spent`.

    Args:
        spent: where the time went, with training as one part.
        facts: the run, with all of its events.
        unit: what the run counts. With prompts, steps wait for responses instead of data.

    Raises:
        DamagedFileError: the file of a diagnosis is damaged.
    """
    is_rl, is_parallel = unit == "prompts", bool((spans.world_size > 1).any())
    others = {**spent.parts}
    training_s = others.pop(TimePart.TRAINING)
    # Events use the clock of the system, and steps a monotonic one, so they may disagree.
    in_steps_s = min(training_s, spans.sum_of("step_time_s"))
    waiting_s = min(in_steps_s, spans.sum_of("data_time_s"))
    exchange = (
        0.0 if not is_parallel else None if is_rl else _exchange_share(facts, spans, directory)
    )
    exchange_s = (in_steps_s - waiting_s) * (exchange or 0.0)
    parts = {
        "computing" if exchange is not None else "computing and exchange": (
            in_steps_s - waiting_s - exchange_s
        ),
        "exchange": exchange_s,
        f"waiting for {'responses' if is_rl else 'data'}": waiting_s,
        "between steps": training_s - in_steps_s,
    }
    return {name: seconds for name, seconds in (*parts.items(), *others.items()) if seconds > 0}


def _exchange_share(facts: RunFacts, spans: Spans, directory: RunDirectory) -> float | None:
    """Returns the share of a step that exchange between ranks takes, without the wait for data.

    The profiled steps of the run tell it, otherwise `rampcli tune --diagnose` of each phase that
    was trained. Returns None if neither has measured it. In reinforcement learning it is unknown,
    because ranks also exchange data while they generate.
    """
    profiled = [row.get("exchange_share") for row in facts.events.profiles.values()]
    if shares := [share for share in profiled if share is not None]:
        return min(1.0, max(0.0, float(mean(shares))))
    phases = [phase_of(facts.plan, stage) for stage in spans.stage.tolist()]
    diagnosed = {phase: _diagnosed_share(directory.folder_of_phase(phase)) for phase in {*phases}}
    by_span = [share for phase in phases if (share := diagnosed[phase]) is not None]
    if len(by_span) < len(phases):
        return None
    _, seconds = spans.seconds("step_time_s")
    return float(np.average(by_span, weights=seconds if seconds.any() else None))


def _diagnosed_share(folder: RunDirectory) -> float | None:
    """Returns the share of exchange that a diagnosis has found, or None if it is unknown."""
    with suppress(FileNotFoundError, ValueError):  # a damaged name of a phase is no name of a file
        path = folder.path / TUNE_FOLDER / "diagnose" / "diagnosis.json"
        share = read_json(path, EXCHANGE_SHAPE).get("exchange_share")
        return None if share is None else min(1.0, max(0.0, float(share)))
    return None
