"""Where a run stands and what trains it, whatever launcher started it."""

from dataclasses import asdict, dataclass
from typing import Any

from rampcli.checkpoint.manifest import complete_checkpoints
from rampcli.errors import DamagedFileError, RampcliError, UsageError
from rampcli.launch.launchers import LAUNCHERS
from rampcli.launch.protocol import Job
from rampcli.launch.run_lock import Holder, holder_of
from rampcli.run_directory import BEFORE_THE_START, RunDirectory
from rampcli.run_rows import last_rows


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStatus:
    """Where a run stands.

    Attributes:
        status: status in state.json.
        step: optimiser steps taken, saved or not.
        consumed_samples: samples that these steps have consumed.
        stage: number of the current stage, from 0.
        saved_step: step of the newest complete checkpoint, or None if there is none.
        supervisor: process that supervises the run, or None.
        jobs: jobs of the run, in order.
        jobs_unknown: why the state of the jobs is unknown, or None.
        error: error of a failed run, as in state.json, or None.
        next: next stage and the command that resumes the run, as in state.json, or None.
    """

    status: str
    step: int
    consumed_samples: int
    stage: int
    saved_step: int | None
    supervisor: Holder | None
    jobs: tuple[Job, ...]
    jobs_unknown: str | None
    error: dict[str, Any] | None
    next: dict[str, Any] | None

    def to_json(self) -> dict[str, Any]:
        """Returns the facts that `rampcli status --json` prints."""
        return asdict(self) | {"jobs": [job.to_json() for job in self.jobs]}


def read_status(directory: RunDirectory) -> RunStatus:
    """Reads the status of a run from its files, its lock and its job queue.

    A queue that does not answer leaves `jobs_unknown`; everything else is known without it.

    Raises:
        DamagedFileError: a file of the run is damaged.
        UsageError: a file of the run is a symbolic link.
    """
    state = directory.read_state() or BEFORE_THE_START
    last = next(iter(last_rows(directory.metrics, 1)), {})
    supervisor, jobs, jobs_unknown = holder_of(directory), list[Job](), None
    try:
        for launcher in LAUNCHERS.values():
            jobs += launcher.jobs(directory)
    except (DamagedFileError, UsageError):
        raise
    except RampcliError as error:
        jobs_unknown = error.message
    return RunStatus(
        status=state["status"],
        step=max(state["step"], last.get("step", 0)),
        consumed_samples=max(state["consumed_samples"], last.get("consumed_samples", 0)),
        stage=max(state["stage"], last.get("stage", 0)),
        saved_step=max(
            (checkpoint.step for checkpoint in complete_checkpoints(directory)), default=None
        ),
        supervisor=supervisor,
        jobs=tuple(jobs),
        jobs_unknown=jobs_unknown,
        error=state.get("error"),
        next=state["next"],
    )
