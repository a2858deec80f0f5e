"""The launcher `slurm`: a chain of jobs, one for each group of stages with the same processes.

Slurm's jobs are submitted as a whole, recorded in slurm/jobs.json, and cancelled.
"""

import os
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rampcli.errors import RampcliError, printable
from rampcli.files.guarded_folder import link_refused
from rampcli.launch.doctor.check import Check, Status
from rampcli.launch.protocol import (
    SUBMITTED,
    Job,
    JobPhase,
    Launch,
    Launcher,
    Outcome,
    StartRanks,
)
from rampcli.launch.slurm import SLURM_FOLDER, chain, commands
from rampcli.launch.slurm.chain import Chain
from rampcli.launch.slurm.workers import SrunWorkers
from rampcli.planning.run_plan import Resolved
from rampcli.runs.directory import RunDirectory
from rampcli.settings.config import Config

CONTROLLER_TIMEOUT_S = 10.0
PROGRAMS = ("sbatch", "srun", "scontrol", "squeue", "scancel", "sinfo")
JOB_PHASES = {"RUNNING": JobPhase.RUNNING, "COMPLETING": JobPhase.ENDING} | dict.fromkeys(
    commands.ENDED_STATES, JobPhase.OVER
)
"""Phases of the states that Slurm reports. In other states, a job waits."""
CAN_SAVE = frozenset({"RUNNING", "SUSPENDED"})
"""States of jobs that can be asked to save."""


def check_slurm(resolved: Resolved | None) -> Check:
    """Checks that a run can be submitted from this machine.

    Problems are failures only for a run with `launch=slurm`.
    """
    is_used = resolved is not None and resolved.config.launch.launcher == "slurm"
    if resolved is not None and not is_used:
        finding = f"launch.launcher={resolved.config.launch.launcher}"
        return Check("slurm", Status.not_needed, finding)
    wanted = None if resolved is None else resolved.config.launch.slurm.partition
    problem, remedy, partitions = None, None, set[str]()
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        problem = f"not on PATH: {', '.join(missing)}"
        remedy = "a login node of the cluster, Slurm's client programs, or launch=local"
    else:
        remedy = "scontrol ping, or ask the cluster's administrators"
        try:
            partitions = commands.partitions(within_s=CONTROLLER_TIMEOUT_S)
        except RampcliError as error:
            problem = error.message
    if problem is None and wanted is not None and (unknown := set(wanted.split(",")) - partitions):
        problem = f"unknown partition {', '.join(sorted(unknown))}"
        remedy = f"launch.slurm.partition={' or '.join(sorted(partitions)) or 'null'}"
    if problem is None:
        names = ", ".join(sorted(partitions)) or "none"
        return Check("slurm", Status.ok, f"the controller answers; partitions: {names}")
    if is_used:
        return Check("slurm", Status.failure, problem, remedy)
    return Check("slurm", Status.not_needed, f"{problem}; only launch=slurm needs it")


class SlurmLauncher(Launcher):
    """Submits the jobs of a run to Slurm."""

    runs_here = False

    def scripts(
        self, resolved: Resolved, directory: RunDirectory, consumed_samples: int, /
    ) -> list[Job]:
        """Renders the sbatch scripts."""
        # This imports jinja2, which only rendering needs.
        from rampcli.launch.slurm.scripts import render_jobs

        return render_jobs(resolved, directory, consumed_samples=consumed_samples)

    def start(self, launch: Launch, /) -> Outcome:
        """Submits the jobs. The first one starts once all are in the queue."""
        with launch.directory.recording_failure():
            jobs = self.submit(launch.directory, launch.scripts)
        return Outcome(
            run=launch.directory,
            status=SUBMITTED,
            state=launch.directory.read_state() or {},
            started=True,
            exit_code=0,
            jobs=tuple(jobs),
        )

    def rank_starter(
        self, resolved: Resolved, program: str, /, *, gpus: Sequence[str] = ()
    ) -> StartRanks:
        """Returns a function that starts ranks on the nodes of this job; srun gives them GPUs."""
        assert not gpus
        return partial(SrunWorkers, resolved, module=program)

    def search_script(self, resolved: Resolved, folder: RunDirectory, /) -> Job:
        """Renders the sbatch script of a search."""
        from rampcli.launch.slurm.scripts import render_search  # which imports jinja2

        return render_search(resolved, folder)

    def submit(self, directory: RunDirectory, jobs: Sequence[Job], /) -> list[Job]:
        """Writes the scripts and submits them, each dependent on the success of the previous job.

        Either all jobs are submitted or none: the first job is held until the last one is in the
        queue.
        """
        self.refuse_active(directory)
        for folder in (directory.logs, directory.path / SLURM_FOLDER):
            directory.make_folder(folder)
        # Slurm opens the logs itself, and would follow a link.
        if link := next((log for log in os.scandir(directory.logs) if log.is_symlink()), None):
            raise link_refused(Path(link))
        for job in jobs:
            directory.replace(directory.path / job.script, job.text)
        jobs = [*jobs]
        chain.write(directory, Chain(jobs=tuple(jobs)))
        try:
            for position, job in enumerate(jobs):
                after = jobs[position - 1].job if position else None
                jobs[position] = _submit_job(job, directory, after=after)
                chain.write(directory, Chain(jobs=tuple(jobs)))
            chain.write(directory, Chain(jobs=tuple(jobs), submitted=round(time.time(), 3)))
            commands.release(str(jobs[0].job))
        except RampcliError as error:
            self._withdraw_after(error, directory)
            raise
        except BaseException:
            self._withdraw(directory)
            raise
        return [_with_state(job, "PENDING") for job in jobs]

    def is_cancelled(self, directory: RunDirectory, /) -> bool:
        """Returns whether the run's jobs were asked to end and to stay out of the queue."""
        return chain.read(directory).cancelled

    def can_ask(self) -> bool:
        """Returns whether squeue is on PATH."""
        return shutil.which("squeue") is not None

    def refuse_active(self, directory: RunDirectory, /) -> None:
        """Checks that no job of the run is in the queue.

        Jobs of an interrupted submission have not started; they are cancelled.
        """
        recorded = chain.read(directory)
        if recorded.jobs and recorded.submitted is None and not recorded.cancelled:
            self._withdraw(directory)
        super().refuse_active(directory)

    def has_jobs(self, directory: RunDirectory, /) -> bool:
        """Returns whether the run has a chain."""
        return bool(chain.read(directory).jobs)

    def jobs(self, directory: RunDirectory, /) -> list[Job]:
        """Returns the jobs of the run's chain."""
        recorded = chain.read(directory).jobs
        ids, folder = _ids(recorded), str(directory.path.resolve())
        # After an interrupted submission, the last ID may not have been recorded.
        is_whole = len(ids) == len(recorded)
        known = commands.jobs_by_id(ids) if is_whole else commands.jobs_of_this_user()
        return [_find(job, known, folder=folder) for job in recorded]

    def cancel(self, directory: RunDirectory, /) -> list[Job]:
        """Removes waiting jobs from the queue, and asks a running job to save and exit."""
        if not (active := self.active_jobs(directory)):
            return []
        # From here on, a job that starts, or is about to requeue itself, sees that it is cancelled.
        chain.write(directory, replace(chain.read(directory), cancelled=True))
        commands.cancel(_ids(active), only_waiting=True)
        active = self.active_jobs(directory)
        if running := _ids(job for job in active if job.state in CAN_SAVE):
            commands.signal_save(running)
        if others := _ids(job for job in active if job.state not in CAN_SAVE | {"COMPLETING"}):
            commands.cancel(others)
        return self.jobs(directory)

    def interpreter(self, config: Config, /) -> str | None:
        """Returns `launch.slurm.python`, or the interpreter that submits."""
        slurm = config.launch.slurm
        return None if slurm.container else slurm.python or sys.executable

    def machine_checks(self, resolved: Resolved | None, /) -> list[Check]:
        """Returns the check of Slurm's programs, its controller and its partitions."""
        return [check_slurm(resolved)]

    def _withdraw(self, directory: RunDirectory) -> None:
        """Cancels all submitted jobs while the first one is still held, so nothing has started."""
        if active := _ids(self.active_jobs(directory)):
            commands.cancel(active)
        chain.write(directory, replace(chain.read(directory), cancelled=True))

    def _withdraw_after(self, error: RampcliError, directory: RunDirectory) -> None:
        """Cancels all submitted jobs, and adds to an error what became of them."""
        ids = _ids(chain.read(directory).jobs)
        note = f"cancelled the jobs that were already submitted: {', '.join(ids)}" if ids else ""
        try:
            self._withdraw(directory)
        except RampcliError as another:
            note = f"jobs may remain in the queue: {another.message}"
            error.remedies = (f"scancel {' '.join(ids)}",) if ids else error.remedies
        if note:
            error.message = printable(f"{error.message}; {note}")


def _ids(jobs: Iterable[Job]) -> list[str]:
    """Returns the IDs of those jobs that were submitted."""
    return [job.job for job in jobs if job.job is not None]


def _submit_job(job: Job, directory: RunDirectory, *, after: str | None) -> Job:
    """Submits a job, and returns it with its ID."""
    order = (
        ["--hold"]
        if after is None
        else [f"--dependency=afterok:{after}", "--kill-on-invalid-dep=yes"]
    )
    folder = directory.path.resolve()
    # These options override the script's. Name and folder identify the job later.
    options = [*order, f"--job-name={job.name}", f"--chdir={folder}"]
    submitted = commands.submit(folder / job.script, folder=folder, options=options)
    return replace(job, job=submitted, dependency=after)


def _find(job: Job, known: Sequence[commands.QueuedJob], *, folder: str) -> Job:
    """Returns a recorded job with the state that Slurm reports, if Slurm lists it.

    An ID alone does not identify the job: after losing its state, Slurm may reuse IDs.
    """
    for each in known:
        same = (
            each.job == job.job if job.job is not None else each.state not in commands.ENDED_STATES
        )
        if same and (each.name, each.folder) == (job.name, folder):
            reason = None if each.reason == "None" else each.reason
            return _with_state(replace(job, job=each.job, reason=reason), each.state)
    return job


def _with_state(job: Job, state: str) -> Job:
    return replace(job, state=state, phase=JOB_PHASES.get(state, JobPhase.WAITING))


LAUNCHER = SlurmLauncher()
