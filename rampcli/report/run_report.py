"""The facts of a report: what a run has trained, beside its plan, and where its time went."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rampcli.report.profiles import profiles
from rampcli.report.training_parts import exchange_share, training_parts
from rampcli.runs.directory import RunDirectory
from rampcli.runs.record import RunRecord
from rampcli.runs.rows import WARNINGS
from rampcli.runs.time_spent import STOPPED, TRAINING, TimeSpent

LAST_STEPS = 10
"""Steps at the end of a stage over which its loss and its rewards are averaged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A part of the time of a run.

    Attributes:
        name: what the time was spent on.
        s: seconds.
        share: share of the running time; None for time in which the run was stopped.
    """

    name: str
    s: float
    share: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class StageReport:
    """A stage as it was planned and as it was trained. Unknown values are None.

    Attributes:
        stage: its number, from 0.
        global_batch_size: samples per step.
        pairs: responses per step, in reinforcement learning.
        planned_nodes, planned_samples, planned_steps: as planned.
        nodes: nodes on which its processes ran last.
        world_sizes: numbers of processes that have trained it.
        samples, steps: as trained.
        loss: mean over its last steps, in nats per token.
        reward, solved: means over its last steps, in reinforcement learning.
        tokens_per_s: tokens per second over all of its steps.
        mfu, mfu_causal: shares of the peak throughput, over all of its steps.
    """

    stage: int
    global_batch_size: int
    pairs: int | None
    planned_nodes: int | None
    planned_samples: int | None
    planned_steps: int | None
    nodes: int | None
    world_sizes: list[int]
    samples: int
    steps: int
    loss: float | None
    reward: float | None
    solved: float | None
    tokens_per_s: float | None
    mfu: float | None
    mfu_causal: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunReport:
    """The facts of a report.

    Attributes:
        name, path, status: of the run; the status is that of state.json, or "crashed".
        unit: what the run counts: samples or prompts.
        device_name: name of rank 0's device, or None if it is unknown.
        began_at, ended_at: first launch and last sign of life, in seconds since 1970.
        consumed_samples, steps: progress.
        time: where the time went; see `TimeSpent`.
        parts: the same in the order of the report, with training divided further.
        stages: the stages.
        validations: last validation loss at each step, by corpus; "" is the only one.
        lost_steps: steps that were repeated.
        counts: number of events by kind.
        boundary_s, save_s, stall_s: medians of what a boundary cost, of how long a save took and of
            how long training waited for it.
        warnings: reasons of warnings, oldest first.
        profiles: events `profile`, with files and operators.
        error: error of a failed run, as in state.json.
    """

    name: str
    path: str
    status: str
    unit: str
    device_name: str | None
    began_at: float | None
    ended_at: float | None
    consumed_samples: int
    steps: int
    time: TimeSpent
    parts: list[Part]
    stages: list[StageReport]
    validations: dict[str, list[tuple[int, float]]]
    lost_steps: int
    counts: dict[str, int]
    boundary_s: float | None
    save_s: float | None
    stall_s: float | None
    warnings: list[str]
    profiles: list[Mapping[str, Any]]
    error: dict[str, Any] | None

    def to_json(self) -> dict[str, Any]:
        """Returns the facts for `--json`."""
        facts = asdict(self)
        time = facts.pop("time")["parts"]
        return facts | {
            "elapsed_s": self.time.elapsed_s,
            "running_s": self.time.running_s,
            "goodput": self.time.goodput,
            "stopped_s": time[STOPPED],
        }


def report_run(record: RunRecord, *, now: float | None = None) -> RunReport:
    """Returns the facts of a run.

    Args:
        record: the run.
        now: the present time if the run is training, else None.
    """
    time, kinds = record.time_spent(now=now), [event["event"] for event in record.events]
    starts = [event for event in record.events if event["event"] == "start"]
    times = [event["time"] for event in record.events] + [record.last_step_at or 0.0, now or 0.0]
    steps = record.metrics.get("step", np.zeros(0))
    return RunReport(
        name=record.name,
        path=str(record.path),
        status=_status(record, now),
        unit=record.unit,
        device_name=starts[-1].get("device_name") if starts else None,
        began_at=times[0] if record.events else None,
        ended_at=max(times) if record.events else None,
        consumed_samples=_last(record, "consumed_samples"),
        steps=int(steps[-1]) if len(steps) else 0,
        time=time,
        parts=_parts(record, time),
        stages=stages_of(record),
        validations=_validations(record),
        lost_steps=sum(event["steps"] for event in record.events if event["event"] == "lost"),
        counts={kind: kinds.count(kind) for kind in dict.fromkeys(kinds)},
        boundary_s=_median(record, "boundary", "lost_s"),
        save_s=_median(record, "checkpoint", "save_s"),
        stall_s=_median(record, "checkpoint", "stall_s"),
        warnings=[event["reason"] for event in record.events if event["event"] in WARNINGS],
        profiles=profiles(record.events),
        error=record.state.get("error"),
    )


def _status(record: RunRecord, now: float | None) -> str:
    status: str = record.state["status"]
    return "crashed" if status == "running" and now is None else status


def _last(record: RunRecord, column: str) -> int:
    values = record.metrics.get(column, np.zeros(0))
    return int(values[-1]) if len(values) else 0


def _median(record: RunRecord, kind: str, column: str) -> float | None:
    """Returns the median of a column of events, or None if no event has it."""
    known = [event.get(column) for event in record.events if event["event"] == kind]
    values = [value for value in known if value is not None]
    return median(values) if values else None


def _validations(record: RunRecord) -> dict[str, list[tuple[int, float]]]:
    """Returns the last validation loss at each step, by corpus. Losses that are null are left out.

    A run that starts again before its first checkpoint repeats some validations.
    """
    found: dict[str, dict[int, float]] = {}
    for event in record.events:
        if event["event"] == "validation" and event["loss"] is not None:
            found.setdefault(event.get("corpus") or "", {})[event["step"]] = event["loss"]
    return {corpus: sorted(losses.items()) for corpus, losses in found.items()}


def _parts(record: RunRecord, time: TimeSpent) -> list[Part]:
    """Returns where the time went, with training divided by what its steps recorded."""
    metrics = record.metrics
    is_rl = record.unit == "prompts"
    training = training_parts(
        time.parts[TRAINING],
        in_steps_s=float(metrics.get("step_time_s", np.zeros(0)).sum()),
        waiting_s=float(np.nansum(metrics.get("data_time_s", np.zeros(0)))),
        exchange=exchange_share(
            RunDirectory(record.path),
            record.events,
            is_parallel=bool((metrics.get("world_size", np.zeros(0)) > 1).any()),
            is_rl=is_rl,
        ),
        is_rl=is_rl,
    )
    seconds = training | {name: s for name, s in time.parts.items() if name != TRAINING}
    running_s = time.running_s
    return [
        Part(name=name, s=s, share=s / running_s if name != STOPPED and running_s > 0 else None)
        for name, s in seconds.items()
        if s > 0
    ]


def stages_of(record: RunRecord) -> list[StageReport]:
    """Returns the stages of the plan, and stages that were trained under an earlier plan."""
    planned = {stage["stage"]: stage for stage in record.plan["stages"]}
    stages = record.metrics.get("stage", np.zeros(0, dtype=np.int64))
    return [
        _stage(number, planned.get(number, {}), record, stages == number)
        for number in sorted({*planned, *np.unique(stages).astype(int).tolist()})
    ]


def _stage(
    number: int, planned: Mapping[str, Any], record: RunRecord, rows: NDArray[np.bool_]
) -> StageReport:
    """Returns a stage, from the rows of metrics that are its own."""
    metrics = {name: values[rows] for name, values in record.metrics.items()}
    steps = int(rows.sum())
    sizes = metrics["global_batch_size"] if steps else [planned.get("global_batch_size", 0)]
    pairs = _mean(metrics.get("pairs", ())[-1:])
    nodes = [event.get("num_nodes") for event in record.events if event.get("stage") == number]
    return StageReport(
        stage=number,
        global_batch_size=int(sizes[-1]),
        pairs=None if pairs is None else int(pairs),
        planned_nodes=planned.get("num_nodes"),
        planned_samples=planned.get("samples"),
        planned_steps=planned.get("steps"),
        nodes=next((count for count in reversed(nodes) if count is not None), None),
        world_sizes=np.unique(metrics["world_size"]).astype(int).tolist() if steps else [],
        samples=int(metrics["global_batch_size"].sum()) if steps else 0,
        steps=steps,
        loss=_mean(metrics.get("loss", ())[-LAST_STEPS:]),
        reward=_mean(metrics.get("reward", ())[-LAST_STEPS:]),
        solved=_mean(metrics.get("solved", ())[-LAST_STEPS:]),
        tokens_per_s=weighted_by_time(metrics, "tokens_per_s"),
        mfu=weighted_by_time(metrics, "mfu"),
        mfu_causal=weighted_by_time(metrics, "mfu_causal"),
    )


def _mean(values: Sequence[float] | NDArray[Any]) -> float | None:
    """Returns the mean of the values that are not NaN, or None without one."""
    known = [float(value) for value in values if value == value]
    return sum(known) / len(known) if known else None


def weighted_by_time(metrics: Mapping[str, NDArray[Any]], rate: str) -> float | None:
    """Returns the mean of a rate over the time of the steps, or None if it is unknown."""
    if rate not in metrics or not len(metrics[rate]):
        return None
    known = ~np.isnan(metrics[rate].astype(float))
    if not known.any():
        return None
    return float(np.average(metrics[rate][known], weights=metrics["step_time_s"][known]))
