"""Where a run stands and what trains it, whatever launcher started it.

Only the last rows of a run are read, so this takes as long for a long run as for a short one.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import Any

from rampcli.batch.time_left import RECENT_STEPS, Speed, median_of, settled_rows, time_left
from rampcli.batch.training_plan import StagePlan
from rampcli.launch.protocol import Job, Phase
from rampcli.launch.queues import Queues
from rampcli.launch.run_lock import Holder, holder_of
from rampcli.locks import is_held
from rampcli.runs.directory import (
    BEFORE_THE_START,
    COMPLETE,
    PREEMPTED,
    STAGE_BOUNDARY,
    RunDirectory,
)
from rampcli.runs.manifest import MANIFEST, Checkpoint, newest_checkpoint
from rampcli.runs.rows import EVALUATED, WARNINGS, last_events, last_rows

TRAINING, STARTING, WAITING = "training", "starting", "waiting"
CRASHED, UNKNOWN = "crashed", "unknown"
_STATES = {STAGE_BOUNDARY: "stage boundary", PREEMPTED: "interrupted"}
_EVENTS = ("launch", "start", "boundary", "validation", "evaluation", *WARNINGS)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStatus:
    """Where a run stands.

    Attributes:
        state: what the run does: `TRAINING`, `STARTING` its processes, `WAITING` in the queue,
            "stage boundary", "interrupted", "failed", "complete" or "not started"; `CRASHED` if
            state.json says that it is running and nothing trains it; `UNKNOWN` if this depends on
            its queue, which does not answer.
        status: status in state.json.
        step: optimiser steps taken, saved or not.
        consumed_samples: samples that these steps have consumed.
        stage: number of the current stage, from 0.
        stages: stages of the whole run; this and others below are None if they are unknown.
        global_batch_size: samples per step of the stage.
        num_nodes: nodes of the stage, without those that are lost.
        end_sample: consumed samples at the end of the run, or None if it has no end.
        loss: loss of the last step in nats per token.
        reward: mean reward of the last step; None without reinforcement learning.
        solved: share of its rewards that are 1 or more.
        validation_loss: newest validation loss, of the corpus that was validated last.
        validation_losses: newest validation loss of each named corpus.
        evaluation: newest mean rewards of held-out prompts, or None.
        tokens_per_s: median over the last steps, as `rampcli.batch.time_left` takes them.
        mfu: median over the same steps, as a share.
        stage_left_s: seconds until the stage ends, as `time_left` estimates them.
        run_left_s: seconds until the run ends.
        step_at: when the last step ended, in seconds since 1970.
        saved_step: step of the newest complete checkpoint, or None if there is none.
        saved_at: when it was completed, in seconds since 1970.
        warnings: warnings among the newest events.
        warning: text of the newest one, or None.
        supervisor: process that supervises the run, or None.
        jobs: jobs of the run, in order.
        jobs_unknown: why the state of the jobs is unknown, or None.
        error: error of a failed run, as in state.json, or None.
        next: next stage and the command that resumes the run, as in state.json, or None.
    """

    state: str
    status: str
    step: int
    consumed_samples: int
    stage: int
    stages: int | None
    global_batch_size: int | None
    num_nodes: int | None
    end_sample: int | None
    loss: float | None
    reward: float | None
    solved: float | None
    validation_loss: float | None
    validation_losses: dict[str, float | None]
    evaluation: dict[str, float | None] | None
    tokens_per_s: float | None
    mfu: float | None
    stage_left_s: float | None
    run_left_s: float | None
    step_at: float | None
    saved_step: int | None
    saved_at: float | None
    warnings: int
    warning: str | None
    supervisor: Holder | None
    jobs: tuple[Job, ...]
    jobs_unknown: str | None
    error: dict[str, Any] | None
    next: dict[str, Any] | None

    def to_json(self) -> dict[str, Any]:
        """Returns the facts that `rampcli status --json` prints."""
        return asdict(self) | {"jobs": [job.to_json() for job in self.jobs]}


def read_status(directory: RunDirectory, queues: Queues | None = None) -> RunStatus:
    """Reads the status of a run from its files, its lock and its job queue.

    A queue that does not answer leaves `jobs_unknown`; everything else is known without it.

    Args:
        directory: run directory.
        queues: remembers the answers of the queues, or None to ask them now.

    Raises:
        DamagedFileError: a file of the run is damaged.
        UsageError: a file of the run is a symbolic link.
        OSError: a file of the run cannot be read.
    """
    state = directory.read_state() or BEFORE_THE_START
    rows = last_rows(directory.metrics, RECENT_STEPS)
    last = rows[-1] if rows else {}
    events = last_events(directory.events, _EVENTS)
    newest: dict[str, dict[str, Any]] = {event["event"]: event for event in events}
    supervisor = holder_of(directory)
    holder = supervisor or is_held(directory.workers_lock)
    if not holder:
        state = directory.read_state() or state  # it may have ended since it was read
    jobs, jobs_unknown = (queues or Queues()).jobs(directory, holder)
    consumed_samples = max(state["consumed_samples"], last.get("consumed_samples", 0))
    stage = max(state["stage"], last.get("stage", 0))
    plan = directory.read_plan() or {"stages": []}
    planned = plan["stages"][stage] if stage < len(plan["stages"]) else {}
    is_current = last.get("stage") == stage
    checkpoint = newest_checkpoint(directory)
    warnings = [event["reason"] for event in events if event["event"] in WARNINGS]
    launch = newest.get("launch", {}) if is_current else {}
    return RunStatus(
        state=_state(state, newest, jobs, jobs_unknown, is_held=bool(holder)),
        status=state["status"],
        step=max(state["step"], last.get("step", 0)),
        consumed_samples=consumed_samples,
        stage=stage,
        stages=len(plan["stages"]) or None,
        global_batch_size=last["global_batch_size"]
        if is_current
        else planned.get("global_batch_size"),
        num_nodes=launch.get("num_nodes") or planned.get("num_nodes"),
        end_sample=_end_sample(plan["stages"]),
        loss=last.get("loss"),
        reward=last.get("reward"),
        solved=last.get("solved"),
        **_validations(events),
        evaluation={name: newest["evaluation"][name] for name in EVALUATED}
        if "evaluation" in newest
        else None,
        **_speeds(plan, rows, newest, consumed_samples=consumed_samples),
        step_at=last.get("time"),
        saved_step=None if checkpoint is None else checkpoint.step,
        saved_at=None if checkpoint is None else _completed_at(checkpoint),
        warnings=len(warnings),
        warning=warnings[-1] if warnings else None,
        supervisor=supervisor,
        jobs=jobs,
        jobs_unknown=jobs_unknown,
        error=state.get("error"),
        next=state["next"],
    )


def read_time_left(directory: RunDirectory) -> tuple[float | None, float | None]:
    """Returns `stage_left_s` and `run_left_s` of a run that is training.

    Raises what `read_status` raises.
    """
    rows = last_rows(directory.metrics, RECENT_STEPS)
    newest = {event["event"]: event for event in last_events(directory.events, _EVENTS)}
    plan = directory.read_plan() or {"stages": []}
    consumed_samples = rows[-1]["consumed_samples"] if rows else 0
    speeds = _speeds(plan, rows, newest, consumed_samples=consumed_samples)
    return speeds["stage_left_s"], speeds["run_left_s"]


def _state(
    recorded: Mapping[str, Any],
    newest: Mapping[str, Mapping[str, Any]],
    jobs: Sequence[Job],
    jobs_unknown: str | None,
    *,
    is_held: bool,
) -> str:
    """Returns the state of a run.

    Args:
        recorded: contents of state.json.
        newest: the newest event of each kind.
        jobs, jobs_unknown: answer of the queue.
        is_held: whether a process holds the locks of the run.
    """
    status: str = recorded["status"]
    # The process may wait for trackers. An error that was not understood leads to a restart.
    has_failed = status == "failed" and recorded["error"]["understood"]
    if status == COMPLETE or (is_held and has_failed):
        return status
    if is_held:
        launched, started = (newest.get(kind, {}).get("time", 0.0) for kind in ("launch", "start"))
        return STARTING if launched > started or not newest else TRAINING
    has_job = any(job.phase is Phase.RUNNING for job in jobs)
    if status == "running":
        # The locks of another machine may be invisible here.
        if has_job:
            return TRAINING
        if jobs_unknown is not None:
            return UNKNOWN
    if has_job and status == BEFORE_THE_START["status"]:
        return STARTING
    # A job of a run that has stopped is about to end, or has just started.
    if not has_job and any(job.phase is Phase.WAITING for job in jobs):
        return WAITING
    return CRASHED if status == "running" else _STATES.get(status, status)


def _end_sample(stages: Sequence[Mapping[str, Any]]) -> int | None:
    """Returns the consumed samples at the end of the last stage of plan.json, or None."""
    if not stages or stages[-1]["samples"] is None:
        return None
    return int(stages[-1]["first_sample"] + stages[-1]["samples"])


def _validations(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the newest validation losses among some events."""
    rows = [event for event in events if event["event"] == "validation"]
    losses = {row["corpus"]: row["loss"] for row in rows if row.get("corpus") is not None}
    return {
        "validation_loss": rows[-1]["loss"] if rows else None,
        "validation_losses": losses,
    }


def _speeds(
    plan: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    newest: Mapping[str, Mapping[str, Any]],
    *,
    consumed_samples: int,
) -> dict[str, Any]:
    """Returns the medians of the last steps, and the time left that follows from them."""
    settled: Sequence[Mapping[str, Any]] = ()
    if rows:
        firsts = {stage["stage"]: stage["first_step"] for stage in plan["stages"]}
        started_at = newest.get("start", {}).get("step", 0)
        first_step = max(started_at, firsts.get(rows[-1]["stage"], 0))
        settled = settled_rows(rows, first_step=first_step)
    stage_left_s, run_left_s = _time_left(plan, settled, newest, consumed_samples)
    shown = settled or rows[-1:]
    return {
        "tokens_per_s": median_of(shown, "tokens_per_s"),
        "mfu": median_of(shown, "mfu"),
        "stage_left_s": stage_left_s,
        "run_left_s": run_left_s,
    }


def _time_left(
    plan: Mapping[str, Any],
    settled: Sequence[Mapping[str, Any]],
    newest: Mapping[str, Mapping[str, Any]],
    consumed_samples: int,
) -> tuple[float | None, float | None]:
    """Returns the seconds left for the stage and for the run; `settled` is of `settled_rows`."""
    ends = [
        math.inf if stage["samples"] is None else stage["first_sample"] + stage["samples"]
        for stage in plan["stages"]
    ]
    if ends and consumed_samples >= ends[-1]:
        return 0.0, 0.0
    ahead = [
        stage for stage, end in zip(plan["stages"], ends, strict=True) if end > consumed_samples
    ]
    samples_per_s = median_of(settled, "samples_per_s")
    if samples_per_s is None or not ahead or any(stage["world_size"] is None for stage in ahead):
        return None, None
    start, launch, boundary = (newest.get(kind) for kind in ("start", "launch", "boundary"))
    if boundary is not None:
        boundary_s = boundary["lost_s"]
    else:
        boundary_s = start["time"] - launch["time"] if start and launch else 0.0
    names = [field.name for field in fields(StagePlan)]
    return time_left(
        [StagePlan(**{name: stage[name] for name in names}) for stage in ahead],
        consumed_samples=consumed_samples,
        speed=Speed(
            samples_per_s=samples_per_s,
            world_size=settled[-1]["world_size"],
            has_own_devices=start is not None and start.get("device", "cpu") != "cpu",
            boundary_s=max(0.0, boundary_s),
        ),
        restarts_always=plan.get("restarts_always", True),
    )


def _completed_at(checkpoint: Checkpoint) -> float | None:
    """Returns when the manifest of a checkpoint was written, in seconds since 1970."""
    with suppress(OSError):
        return (checkpoint.path / MANIFEST).lstat().st_mtime
    return None
