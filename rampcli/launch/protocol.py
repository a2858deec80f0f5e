"""The interface of launchers, which start the workers of a run, and list and cancel its jobs."""

import sys
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from rampcli.batch.training_plan import StagePlan
from rampcli.config.schema import Config
from rampcli.launch.doctor.check import Check
from rampcli.launch.observer import Observer
from rampcli.planning.run_plan import Resolved
from rampcli.runs.directory import RunDirectory

SUBMITTED = "submitted"
"""Status of an outcome whose stages are trained later, by jobs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobScript:
    """The script of one job.

    Attributes:
        stages: stages that the job trains.
        num_nodes: nodes that it requests.
        job_name: letters, digits, dots, dashes and underscores.
        path: where the script belongs in the run directory. Rendering does not write it.
        text: contents of the script.
    """

    stages: tuple[StagePlan, ...]
    num_nodes: int
    job_name: str
    path: Path
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRecord:
    """A job that trains stages of a run, as its launcher records it.

    Attributes:
        job: ID, or None if the job was not submitted.
        name: name that the queue shows.
        stages: numbers of the stages that the job trains, from 0.
        num_nodes: nodes that it requests.
        global_batch_sizes: batch size of each stage, in samples.
        script: path of its script, relative to the run directory.
        dependency: ID of the job that must succeed first, or None for the first job.
    """

    job: str | None
    name: str
    stages: tuple[int, ...]
    num_nodes: int
    global_batch_sizes: tuple[int, ...]
    script: str
    dependency: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Job(JobRecord):
    """A recorded job with what its queue reports.

    Attributes:
        state: PENDING or RUNNING, for example; None if the queue no longer lists the job.
        reason: why the job is in this state, or None if the queue gives no reason.
        is_active: True if the job waits, runs or will run again.
    """

    state: str | None
    reason: str | None
    is_active: bool

    def to_json(self) -> dict[str, Any]:
        """Returns the job as `rampcli status --json` shows it."""
        return {name: value for name, value in asdict(self).items() if name != "is_active"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """A checked run that is about to start.

    Attributes:
        resolved: configuration and plan of the run.
        directory: run directory, locked by this process.
        scripts: scripts to submit; empty if the launcher submits no jobs.
        gpus: GPUs of this machine that are reserved for the run, as in CUDA_VISIBLE_DEVICES.
        observers: receive progress, if the workers run here.
        one_stage: stop at the next stage boundary.
    """

    resolved: Resolved
    directory: RunDirectory
    scripts: Sequence[JobScript]
    gpus: Sequence[str]
    observers: Sequence[Observer]
    one_stage: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a launch ended.

    Attributes:
        run: run directory; `run.path` is its path.
        status: `"complete"`; `"stage_boundary"` with `one_stage`; `"preempted"` if the run was
            asked to stop and saved; `"submitted"` if jobs train the run later.
        state: contents of state.json.
        started: False if the run was already complete.
        exit_code: exit code of the command, 0 unless the run was interrupted.
        jobs: submitted jobs.
        observer_error: exception of the observer that stopped the run, or None.
    """

    run: RunDirectory
    status: str
    state: dict[str, Any]
    started: bool
    exit_code: int
    jobs: tuple[Job, ...] = ()
    observer_error: Exception | None = None


class Launcher(Protocol):
    """Starts the workers of a run. `rampcli.launch.launchers` lists the launchers by name.

    Starting a run calls `check`, `scripts`, `reserve_gpus`, `refuse_active` and `start`, in this
    order. The first three write nothing into the run directory. The defaults suit a launcher
    that runs workers here and submits no jobs.
    """

    runs_here: ClassVar[bool]
    """True if the workers run on this machine and need its GPUs and processors."""

    def check(self, _resolved: Resolved, /) -> None:
        """Checks that this machine has what the launcher needs.

        Raises:
            UsageError: it does not.
        """
        return

    def scripts(
        self, _resolved: Resolved, _directory: RunDirectory, _consumed_samples: int, /
    ) -> list[JobScript]:
        """Returns the scripts of the jobs that train the remaining samples, in order.

        `pretrain --dry-run` prints them. A launcher that submits no jobs has no scripts.

        Raises:
            UsageError: a script cannot be rendered.
        """
        return []

    def reserve_gpus(self, _resolved: Resolved, /) -> AbstractContextManager[Sequence[str]]:
        """Reserves GPUs of this machine while the context lasts, and gives their names.

        Raises:
            UsageError: not enough GPUs are free.
        """
        return nullcontext(())

    @abstractmethod
    def start(self, launch: Launch, /) -> Outcome:
        """Trains the run, or submits the jobs that will train it.

        Raises:
            RampcliError: the workers failed, or a job was refused.
        """

    def can_ask(self) -> bool:
        """Returns whether this machine has the programs to ask the launcher's job queue."""
        return False

    def refuse_active(self, _directory: RunDirectory, /) -> None:
        """Checks that no job of a run is active. The caller holds the run's lock.

        Raises:
            UsageError: a job waits or runs.
            RampcliError: the queue does not answer.
        """
        return

    def has_jobs(self, _directory: RunDirectory, /) -> bool:
        """Returns whether the run directory records jobs, without asking the queue.

        Raises:
            DamagedFileError: the record of the jobs is damaged.
            UsageError: the record is a symbolic link.
        """
        return False

    def jobs(self, _directory: RunDirectory, /) -> list[Job]:
        """Returns the jobs of a run in order, or an empty list if the run has no jobs.

        Raises:
            DamagedFileError: the record of the jobs is damaged.
            UsageError: the record is a symbolic link.
            RampcliError: the queue does not answer.
        """
        return []

    def cancel(self, _directory: RunDirectory, /) -> list[Job]:
        """Asks the active jobs of a run to save and exit.

        Returns:
            All jobs of the run afterwards, or an empty list if none was active.

        Raises:
            RampcliError: as `jobs`.
        """
        return []

    def interpreter(self, _config: Config, /) -> str | None:
        """Returns the workers' Python interpreter, or None if they run in a container."""
        return sys.executable

    def machine_checks(self, _resolved: Resolved | None, /) -> list[Check]:
        """Returns what `rampcli doctor` reports about the launcher's own programs."""
        return []
