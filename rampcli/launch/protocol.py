"""The interface of launchers, which start the workers of a run, and list and cancel its jobs."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from rampcli.errors import UsageError
from rampcli.launch.doctor.check import Check
from rampcli.launch.elastic import World
from rampcli.launch.observer import Observer
from rampcli.launch.workers import Workers
from rampcli.machine.lifeline import StopSignals
from rampcli.planning.run_plan import Resolved
from rampcli.plugins.launchers import LAUNCHERS
from rampcli.runs.directory import RunDirectory
from rampcli.settings.config import Config
from rampcli.settings.launch import LaunchConfig

SUBMITTED = "submitted"
"""Status of an outcome whose stages are trained later, by jobs."""
SEARCH_PROGRAM = "rampcli.tune.job"
"""What the job of a search runs: `python -m rampcli.tune.job FOLDER`."""

StartRanks = Callable[[RunDirectory, World, Path], Workers]
"""Starts the ranks of a world. Takes their run directory, the world, and the log they print to."""


class JobPhase(Enum):
    """State of a job, in words that all queues share."""

    WAITING = "waits, or will run again"
    RUNNING = "runs"
    ENDING = "has run, and the queue still cleans up after it"
    OVER = "will not run again"


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A job that trains stages of a run: what its launcher records, and what its queue reports.

    Attributes:
        job: ID, or None if the job was not submitted.
        name: name that the queue shows: letters, digits, dots, dashes and underscores.
        stages: numbers of the stages that the job trains, from 0.
        num_nodes: nodes that it requests.
        global_batch_sizes: batch size of each stage, in samples.
        script: path of its script, relative to the run directory.
        dependency: ID of the job that must succeed first, or None for the first job.
        text: content of the script, if it has just been rendered. Rendering does not write it.
        state: the queue's word for its state, or None if the queue does not list the job.
        reason: why the job is in this state, or None if the queue gives no reason.
        phase: what the state means.
    """

    job: str | None = None
    name: str
    stages: tuple[int, ...]
    num_nodes: int
    global_batch_sizes: tuple[int, ...]
    script: str
    dependency: str | None = None
    text: str = ""
    state: str | None = None
    reason: str | None = None
    phase: JobPhase = JobPhase.OVER

    @property
    def is_active(self) -> bool:
        """True if the job waits, runs or will run again."""
        return self.phase is not JobPhase.OVER

    def record(self) -> dict[str, Any]:
        """Returns the facts that a launcher records: those that do not change in the queue."""
        left_out = ("text", "state", "reason", "phase")
        return {name: value for name, value in asdict(self).items() if name not in left_out}

    def to_json(self) -> dict[str, Any]:
        """Returns the job as `rampcli status --json` shows it."""
        return self.record() | {"state": self.state, "reason": self.reason}


def scripts_to_submit(
    resolved: Resolved, jobs: Sequence[Job], *, one_stage: bool, one_phase: bool
) -> Sequence[Job]:
    """Returns the first of the jobs, those of its phase, or all of them."""
    if one_phase and jobs:
        phases = {stage.stage: resolved.of(stage) for stage in resolved.plan.stages}
        phase = phases[jobs[0].stages[0]]
        jobs = [job for job in jobs if phases[job.stages[0]] is phase]
    return jobs[:1] if one_stage else jobs


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """A checked run that is about to start.

    Attributes:
        directory: run directory, locked by this process.
        scripts: jobs to submit, with their scripts; empty if the launcher submits no jobs.
        gpus: GPUs of this machine that are reserved for the run, as in CUDA_VISIBLE_DEVICES.
        observers: receive progress, if the workers run here.
        one_stage: stop at the next stage boundary.
        one_phase: stop at the end of the phase.
        signals: stop signals that the main thread collects for this thread, or None.
    """

    resolved: Resolved
    directory: RunDirectory
    scripts: Sequence[Job]
    gpus: Sequence[str]
    observers: Sequence[Observer]
    one_stage: bool
    one_phase: bool = False
    signals: StopSignals | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """Differences between the settings that a run was trained with and those of a command.

    Attributes:
        settings: earlier and present value of each setting that differs, as they are typed.
        jump: what happens to the learning rate of the last step that is saved, or None if it stays.
        unreadable: why the earlier settings are not known, or None.
    """

    settings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    jump: str | None = None
    unreadable: str | None = None


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
        changes: how the settings of the command differ from those that a complete run was trained
            with. Changes of a run that goes on are events.
    """

    run: RunDirectory
    status: str
    state: dict[str, Any]
    started: bool
    exit_code: int
    jobs: tuple[Job, ...] = ()
    observer_error: Exception | None = None
    changes: Changes = field(default_factory=Changes)


class Launcher(ABC):
    """Starts the workers of a run. `rampcli.plugins.launchers` lists the launchers by name.

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
    ) -> list[Job]:
        """Returns the jobs that train the remaining samples, in order, with their scripts.

        `pretrain --dry-run` prints them. A launcher that submits no jobs has none.

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

    @abstractmethod
    def rank_starter(
        self, resolved: Resolved, program: str, /, *, gpus: Sequence[str] = ()
    ) -> StartRanks:
        """Returns a function that starts ranks here, or in the job that calls it.

        Args:
            program: module that a rank runs. It takes the run directory, and perhaps `WAIT`.
            gpus: what `reserve_gpus` has reserved.
        """

    def can_ask(self) -> bool:
        """Returns whether this machine has the programs to ask the launcher's job queue."""
        return False

    def search_script(self, resolved: Resolved, _folder: RunDirectory, /) -> Job:
        """Returns a job, with its script, that runs `SEARCH_PROGRAM` on the largest stage's nodes.

        Args:
            folder: the run directory of the search, which belongs to that of the run.

        Raises:
            UsageError: the launcher starts no searches, or the script cannot be rendered.
        """
        raise UsageError(
            f"tune cannot search with launch.launcher={resolved.config.launch.launcher}",
            keys=(LaunchConfig.launcher,),
            remedy="launch=local on a machine with the devices of the run",
        )

    def submit(self, _directory: RunDirectory, jobs: Sequence[Job], /) -> list[Job]:
        """Submits jobs, each of which waits for the one before. The caller holds the run's lock.

        Args:
            jobs: with their scripts, as `scripts` returns them.

        Raises:
            RampcliError: a job was refused. Then no job stays in the queue.
        """
        assert not jobs
        return []

    def is_cancelled(self, _directory: RunDirectory, /) -> bool:
        """Returns whether the jobs of a run were asked to end, as a job asks that starts late."""
        return False

    def refuse_active(self, directory: RunDirectory, /) -> None:
        """Checks that no job of a run is active. The caller holds the run's lock.

        Raises:
            UsageError: a job waits or runs.
            RampcliError: the queue does not answer.
        """
        if active := self.active_jobs(directory):
            jobs = ", ".join(str(job.job) for job in active)
            raise UsageError(
                f"{directory.path} has jobs in the queue: {jobs}",
                remedy=f"rampcli status {directory.path}, or rampcli cancel {directory.path};"
                " or another name= or run_dir=",
            )

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

    def active_jobs(self, directory: RunDirectory, /) -> list[Job]:
        """Returns those of `jobs` that wait, run or will run again."""
        return [job for job in self.jobs(directory) if job.is_active]

    def cancel(self, _directory: RunDirectory, /) -> list[Job]:
        """Asks the active jobs of a run to save and exit.

        Returns all jobs of the run afterwards, or an empty list if none was active.

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


@cache
def launchers() -> Mapping[str, Launcher]:
    """Returns the launchers by the value of `launch.launcher`."""
    return {
        name: import_module(f"{package}.launcher").LAUNCHER for name, package in LAUNCHERS.items()
    }


def launcher_of(config: Config) -> Launcher:
    """Returns the launcher that a configuration chooses."""
    return launchers()[config.launch.launcher]
