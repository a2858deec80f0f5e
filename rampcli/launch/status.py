"""Where a run stands and what trains it, whatever launcher started it.

Only the last rows of a run are read, so this takes as long for a long run as for a short one.
Answers of job queues are used again for a while.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from rampcli.errors import DamagedFileError, RampcliError, UsageError, reason_of
from rampcli.files.locks import is_held
from rampcli.launch.protocol import Job, JobPhase, Launcher, launchers
from rampcli.launch.run_lock import Holder, holder_of
from rampcli.runs.directory import (
    BEFORE_THE_START,
    COMPLETE,
    PREEMPTED,
    STAGE_BOUNDARY,
    RunDirectory,
)
from rampcli.runs.events import EventsFile
from rampcli.runs.facts import CRASHED, RunFacts, read_facts
from rampcli.runs.manifest import MANIFEST, Checkpoint, newest_checkpoint
from rampcli.runs.standstill import Standstill, find_standstill

ASK_QUEUE_EVERY_S = 30.0
"""Seconds for which an answer of a queue is used again."""
ASK_SOON_S = 10.0
"""The same in the first `SETTLING_S` after a run has started or ended, if its job has not yet."""
SETTLING_S = 60.0
TRAINING_STATE, STARTING_STATE, WAITING_STATE, UNKNOWN_STATE = (
    "training",
    "starting",
    "waiting",
    "unknown",
)
_STATES = {STAGE_BOUNDARY: "stage boundary", PREEMPTED: "interrupted"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The jobs of a run as its queue listed them.

    Attributes:
        at: time of the answer, on the monotonic clock.
        holder: which process held the locks of the run then; see `Queues.jobs`.
        holds_since: time of the first answer with this holder.
    """

    at: float
    holder: Holder | bool
    holds_since: float
    jobs: list[Job]

    def is_usable(self, holder: Holder | bool) -> bool:
        """Returns whether the queue need not be asked again."""
        now = time.monotonic()
        agrees = bool(holder) == any(job.phase is JobPhase.RUNNING for job in self.jobs)
        has_settled = agrees or now - self.holds_since > SETTLING_S
        lasts_s = ASK_QUEUE_EVERY_S if has_settled else ASK_SOON_S
        return holder == self.holder and now - self.at < lasts_s


class Queues:
    """Remembers the jobs of each run, and failures of queues, for `ASK_QUEUE_EVERY_S`."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str], Answer] = {}
        self._failures: dict[str, tuple[float, str]] = {}

    def jobs(
        self, directory: RunDirectory, holder: Holder | bool
    ) -> tuple[tuple[Job, ...], str | None]:
        """Returns the jobs of a run in order, and why their state is unknown, or None.

        Args:
            holder: the process that supervises the run. Without one, whether workers hold its lock.
                If this has changed, the queue is asked at once.

        Raises:
            DamagedFileError: the record of the jobs is damaged.
            UsageError: the record is a symbolic link.
        """
        jobs, unknown = list[Job](), None
        for name, launcher in launchers().items():
            found, reason = self._ask(name, launcher, directory, holder)
            jobs, unknown = jobs + found, reason or unknown
        return tuple(jobs), unknown

    def _ask(
        self, name: str, launcher: Launcher, directory: RunDirectory, holder: Holder | bool
    ) -> tuple[list[Job], str | None]:
        now, key = time.monotonic(), (name, str(directory.path))
        known = self._answers.get(key)
        failed_at, message = self._failures.get(name, (-ASK_QUEUE_EVERY_S, ""))
        try:
            if not launcher.has_jobs(directory):
                return [], None
            if known is not None and known.is_usable(holder):
                return known.jobs, None
            if now - failed_at < ASK_QUEUE_EVERY_S:
                return [], message
            jobs = launcher.jobs(directory)
        except (DamagedFileError, UsageError):
            raise
        except Exception as error:  # everything else is known without this launcher
            message = reason_of(error)
            if not isinstance(error, RampcliError):
                message = f"launcher {name}: {message}"
            self._failures[name] = (time.monotonic(), message)
            return [], message
        since = known.holds_since if known is not None and known.holder == holder else now
        self._answers[key] = Answer(at=now, holder=holder, holds_since=since, jobs=jobs)
        return jobs, None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStatus:
    """Where a run stands: its facts, and what trains it. Figures that are unknown are None.

    Attributes:
        facts: what it has done.
        state: what it does: `TRAINING_STATE`, `STARTING_STATE` its processes,
            `WAITING_STATE` in the queue, "stage boundary", "interrupted", "failed", "complete" or
            "not started"; `CRASHED` if state.json says that it is running and nothing trains it;
            `UNKNOWN_STATE` if this depends on its queue, which does not answer.
        stage_left_s, run_left_s: seconds until the stage ends, and until the run ends.
        saved_step: step of the newest complete checkpoint, or None if there is none.
        saved_at: when it was completed, in seconds since 1970.
        supervisor: process that supervises the run, or None.
        jobs_unknown: why the state of the jobs is unknown, or None.
        goodput: share of the running time that went into steps that count.
        standstill: tells for how long it has taken no step, and which ranks are behind; None
            while it takes steps, or nothing trains it.
    """

    facts: RunFacts
    state: str
    stage_left_s: float | None
    run_left_s: float | None
    saved_step: int | None
    saved_at: float | None
    supervisor: Holder | None
    jobs: tuple[Job, ...]
    jobs_unknown: str | None
    goodput: float | None
    standstill: Standstill | None

    def to_json(self) -> dict[str, Any]:
        """Returns the facts that `rampcli status --json` prints."""
        facts, recorded = self.facts, self.facts.recorded
        warnings = facts.events.warnings
        return {
            "state": self.state,
            "status": recorded["status"],
            "step": facts.step,
            "consumed_samples": facts.consumed_samples,
            "stage": facts.stage,
            "stages": len(facts.stages) or None,
            "phase": facts.phase,
            "origin": facts.events.origin,
            "global_batch_size": facts.global_batch_size,
            "num_nodes": facts.num_nodes,
            "end_sample": facts.end_sample,
            **{name: facts.last.get(name) for name in ("loss", "reward", "solved")},
            "validation_loss": facts.validation_loss,
            "validation_losses": facts.validation_losses,
            "ema_validation_losses": facts.losses_of_average("ema_loss"),
            "merge_validation_losses": facts.losses_of_average("merge_loss"),
            "evaluation": facts.evaluation,
            "tokens_per_s": facts.tokens_per_s,
            "quiet_s": None if self.standstill is None else self.standstill.quiet_s,
            "standstill": None if self.standstill is None else self.standstill.to_json(),
            "mfu": facts.mfu,
            "stage_left_s": self.stage_left_s,
            "run_left_s": self.run_left_s,
            "step_at": facts.last.get("time"),
            "saved_step": self.saved_step,
            "saved_at": self.saved_at,
            "warnings": len(warnings),
            "warning": warnings[-1] if warnings else None,
            "supervisor": None if self.supervisor is None else asdict(self.supervisor),
            "jobs": [job.to_json() for job in self.jobs],
            "jobs_unknown": self.jobs_unknown,
            "error": facts.error,
            "next": recorded["next"],
            "goodput": self.goodput,
        }


def read_status(
    directory: RunDirectory,
    queues: Queues | None = None,
    *,
    file: EventsFile | None = None,
    most_event_bytes: int | None = 0,
) -> RunStatus:
    """Reads the status of a run from its files, its lock and its job queue.

    A queue that does not answer leaves `jobs_unknown`; everything else is known without it.

    Args:
        queues: remembers the answers of the queues, or None to ask them now.
        file, most_event_bytes: as in `read_facts`. The goodput is known if all events are read.

    Raises:
        DamagedFileError, UsageError, OSError: as `read_facts`.
    """
    facts = read_facts(directory, file, most_event_bytes=most_event_bytes)
    supervisor = holder_of(directory)
    holder = supervisor or is_held(directory.workers_lock)
    if not holder:
        facts.state = directory.read_state() or facts.state  # it may have ended since it was read
    jobs, jobs_unknown = (queues or Queues()).jobs(directory, holder)
    state = _state(facts, jobs, jobs_unknown, is_held=bool(holder))
    stage_left_s, run_left_s = facts.time_left()
    checkpoint = newest_checkpoint(directory)
    now = time.time() if state in (TRAINING_STATE, STARTING_STATE) else None
    return RunStatus(
        facts=facts,
        state=state,
        stage_left_s=stage_left_s,
        run_left_s=run_left_s,
        saved_step=None if checkpoint is None else checkpoint.step,
        saved_at=None if checkpoint is None else _completed_at(checkpoint),
        supervisor=supervisor,
        jobs=jobs,
        jobs_unknown=jobs_unknown,
        goodput=facts.time_spent(now=now).goodput if facts.has_whole_clock else None,
        standstill=None if now is None else find_standstill(directory, facts, now=now),
    )


def _state(
    facts: RunFacts,
    jobs: Sequence[Job],
    jobs_unknown: str | None,
    *,
    is_held: bool,
) -> str:
    """Returns the state of a run, given whether a process holds its locks."""
    recorded = facts.recorded
    status: str = recorded["status"]
    # The process may wait for trackers. An error that was not understood leads to a restart.
    has_failed = status == "failed" and recorded["error"]["understood"]
    if status == COMPLETE or (is_held and has_failed):
        return status
    has_job = any(job.phase is JobPhase.RUNNING for job in jobs)
    # The locks of another machine may be invisible here.
    if is_held or (status == "running" and has_job):
        return STARTING_STATE if facts.is_starting else TRAINING_STATE
    if status == "running" and jobs_unknown is not None:
        return UNKNOWN_STATE
    if has_job and status == BEFORE_THE_START["status"]:
        return STARTING_STATE
    # A job of a run that has stopped is about to end, or has just started.
    if not has_job and any(job.phase is JobPhase.WAITING for job in jobs):
        return WAITING_STATE
    return CRASHED if status == "running" else _STATES.get(status, status)


def _completed_at(checkpoint: Checkpoint) -> float | None:
    """Returns when the manifest of a checkpoint was written, in seconds since 1970."""
    with suppress(OSError):
        return (checkpoint.path / MANIFEST).lstat().st_mtime
    return None
