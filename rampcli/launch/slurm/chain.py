"""The chain of a run's jobs: submitted all or none, written down, watched and cancelled."""

import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rampcli.errors import DamagedFileError, RampcliError, UsageError
from rampcli.launch.slurm import commands
from rampcli.launch.slurm.scripts import FOLDER, JobScript
from rampcli.own_folder import link_refused
from rampcli.records import COUNT, POSITIVE, read_json
from rampcli.run_directory import RunDirectory

TEXT_OR_NULL = (str, None)
JOB = {
    "job": TEXT_OR_NULL,
    "name": str,
    "stages": [COUNT],
    "num_nodes": POSITIVE,
    "global_batch_sizes": [COUNT],
    "script": str,
    "dependency": TEXT_OR_NULL,
}
CHAIN = {"jobs": [JOB], "submitted": (float, None), "cancelled": bool}
"""The shape of `slurm/jobs.json`, as `rampcli.records` has it."""
MOST_JOBS = 10_000
"""Slurm's own limit (MaxJobCount), unless a cluster has another. So many ids fit into a command line."""
MOST_BYTES = 16 * 2**20
_PLAIN = {
    "job": commands.JOB_ID,
    "dependency": commands.JOB_ID,
    "name": re.compile(r"[A-Za-z0-9._-]+"),
    "script": re.compile(rf"{FOLDER}/stage_[0-9]+\.sbatch"),
}
_CAN_SAVE = frozenset({"RUNNING", "SUSPENDED"})


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainedJob:
    """One job of a chain.

    Attributes:
        job: its id; None before it is submitted.
        name: that Slurm shows.
        stages: numbers of the stages that it trains, from 0.
        num_nodes: that it asks for.
        global_batch_sizes: of the stages, in samples.
        script: in the run directory.
        dependency: the id of the job that has to end well before; None for the first.
    """

    job: str | None
    name: str
    stages: tuple[int, ...]
    num_nodes: int
    global_batch_sizes: tuple[int, ...]
    script: str
    dependency: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """What `slurm/jobs.json` says.

    Attributes:
        jobs: in order.
        submitted: when the last one was, in seconds since 1970; None where submitting was interrupted. The first one is held until then.
        cancelled: whether it was asked to end.
    """

    jobs: tuple[ChainedJob, ...]
    submitted: float | None = None
    cancelled: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStatus:
    """A job of a chain, as Slurm sees it now.

    Attributes:
        planned: what was submitted.
        job: its id; None where it was never submitted.
        state: PENDING, RUNNING, COMPLETED, ...; None where Slurm knows it no more, minutes after its end.
        reason: why; None where Slurm gives none.
    """

    planned: ChainedJob
    job: str | None
    state: str | None
    reason: str | None

    @property
    def lives(self) -> bool:
        """Whether it waits, runs, or goes on later."""
        return self.state is not None and self.state not in commands.OVER


def read(directory: RunDirectory) -> Chain | None:
    """Returns the chain of a run, or None if slurm/jobs.json does not exist.

    Raises:
        DamagedFileError: slurm/jobs.json is not what a submission wrote.
        UsageError: it is a symbolic link, or its folder is one.
    """
    path = _record(directory)
    for each in (path.parent, path):
        if os.path.islink(each):
            raise link_refused(each)
    try:
        facts = read_json(path, CHAIN, most_bytes=MOST_BYTES)
        if len(facts["jobs"]) > MOST_JOBS:
            raise DamagedFileError(
                f"{path} is damaged: it has {len(facts['jobs']):,} jobs, and {MOST_JOBS:,} are the most"
            )
        jobs = tuple(_read_job(path, position, job) for position, job in enumerate(facts["jobs"]))
    except FileNotFoundError:
        return None
    except DamagedFileError as error:
        error.remedy = f"delete {path} once `squeue --me` shows no job of the run"
        raise
    return Chain(jobs=jobs, submitted=facts["submitted"], cancelled=facts["cancelled"])


def _read_job(path: Path, position: int, facts: dict[str, Any]) -> ChainedJob:
    for field, pattern in _PLAIN.items():
        if facts[field] is not None and not pattern.fullmatch(facts[field]):
            raise DamagedFileError(
                f"{path} is damaged: jobs[{position}].{field} is {facts[field]!r}"
            )
    tuples = {name: tuple(facts[name]) for name in ("stages", "global_batch_sizes")}
    return ChainedJob(**{name: facts[name] for name in JOB} | tuples)


def is_cancelled(directory: RunDirectory) -> bool:
    """Whether the run's jobs were asked to end and not to go back into the queue."""
    chain = read(directory)
    return chain is not None and chain.cancelled


def submit(directory: RunDirectory, scripts: Sequence[JobScript]) -> Chain:
    """Write the scripts and submit them, each to start once the one before has ended well: all of them, or none.

    The first one is held until all are there. Whoever calls this holds the run directory's lock.

    Raises:
        UsageError: jobs of the run are in the queue already.
        RampcliError: Slurm refused one; those before it are cancelled.
    """
    refuse_living(directory)
    for folder in (directory.logs, directory.path / FOLDER):
        directory.make_folder(folder)
    # Slurm opens the logs, and would follow a link.
    if link := next(
        (Path(entry) for entry in os.scandir(directory.logs) if entry.is_symlink()), None
    ):
        raise link_refused(link)
    for script in scripts:
        directory.replace(script.path, script.text)
    chain = _write(directory, Chain(jobs=tuple(_planned(directory, script) for script in scripts)))
    try:
        for position, script in enumerate(scripts):
            chain = _write(directory, _with_submitted(directory, chain, position, script))
        chain = _write(directory, replace(chain, submitted=round(time.time(), 3)))
        commands.release(str(chain.jobs[0].job))
    except RampcliError as error:
        raise _after_taking_back(directory, error) from error
    except BaseException:
        _take_back(directory)
        raise
    return chain


def refuse_living(directory: RunDirectory) -> None:
    """See to it that no job of a run is in the queue. What an interrupted submission left there has not started, and is cancelled.

    Whoever calls this holds the run directory's lock.

    Raises:
        UsageError: there is one.
        RampcliError: Slurm does not answer.
    """
    chain = read(directory)
    if chain is not None and chain.submitted is None and not chain.cancelled:
        _take_back(directory)
    if living := living_jobs(directory):
        jobs = ", ".join(str(job.job) for job in living)
        raise UsageError(
            f"{directory.path} has jobs in the queue: {jobs}",
            remedy=f"rampcli status {directory.path}, or rampcli cancel {directory.path}; or another name= or run_dir=",
        )


def status(directory: RunDirectory) -> list[JobStatus]:
    """The jobs of a run's chain, in order; empty where there is none.

    Raises:
        RampcliError: Slurm does not answer.
    """
    chain = read(directory)
    if chain is None:
        return []
    ids = [job.job for job in chain.jobs if job.job is not None]
    # Where submitting was interrupted, the last id may not be written down.
    known = (
        commands.jobs_by_id(ids) if len(ids) == len(chain.jobs) else commands.jobs_of_this_user()
    )
    return [_status(planned, known, folder=str(directory.path.resolve())) for planned in chain.jobs]


def living_jobs(directory: RunDirectory) -> list[JobStatus]:
    """The jobs of a run that wait, run, or go on later.

    Raises:
        RampcliError: Slurm does not answer.
    """
    return [job for job in status(directory) if job.lives]


def cancel(directory: RunDirectory) -> list[JobStatus]:
    """Take waiting jobs out of the queue, and have a running one save and end; gives what Slurm says of them then.

    Raises:
        UsageError: the run has no jobs.
        RampcliError: Slurm does not answer.
    """
    chain = read(directory)
    if chain is None:
        raise UsageError(
            f"{directory.path} has no jobs of Slurm's",
            remedy="the run directory of a run with launch=slurm",
        )
    # A job that starts or would go back into the queue from here on looks at this first.
    _write(directory, replace(chain, cancelled=True))
    if waiting := _ids(living_jobs(directory)):
        commands.cancel(waiting, only_waiting=True)
    living = living_jobs(directory)
    if running := _ids(job for job in living if job.state in _CAN_SAVE):
        commands.ask_to_save(running)
    if others := _ids(job for job in living if job.state not in _CAN_SAVE | {"COMPLETING"}):
        commands.cancel(others)
    return status(directory)


def _ids(jobs: Iterable[JobStatus]) -> list[str]:
    return [job.job for job in jobs if job.job is not None]


def _record(directory: RunDirectory) -> Path:
    return directory.path / FOLDER / "jobs.json"


def _write(directory: RunDirectory, chain: Chain) -> Chain:
    directory.write_json(_record(directory), asdict(chain))
    return chain


def _planned(directory: RunDirectory, script: JobScript) -> ChainedJob:
    return ChainedJob(
        job=None,
        name=script.job_name,
        stages=tuple(stage.stage for stage in script.stages),
        num_nodes=script.num_nodes,
        global_batch_sizes=tuple(stage.global_batch_size for stage in script.stages),
        script=str(script.path.relative_to(directory.path)),
        dependency=None,
    )


def _with_submitted(
    directory: RunDirectory, chain: Chain, position: int, script: JobScript
) -> Chain:
    """The chain with one more job submitted."""
    previous = chain.jobs[position - 1].job if position else None
    placing = (
        ["--hold"]
        if previous is None
        else [f"--dependency=afterok:{previous}", "--kill-on-invalid-dep=yes"]
    )
    folder = directory.path.resolve()
    # What stands here, no option of the user's in the script changes: by its name and its folder a job is found again.
    options = [*placing, f"--job-name={script.job_name}", f"--chdir={folder}"]
    job = replace(
        chain.jobs[position],
        job=commands.submit(script.path.resolve(), folder=folder, options=options),
        dependency=previous,
    )
    return replace(chain, jobs=(*chain.jobs[:position], job, *chain.jobs[position + 1 :]))


def _status(planned: ChainedJob, known: Sequence[commands.QueuedJob], *, folder: str) -> JobStatus:
    """What Slurm says of a job. An id alone is no proof: Slurm may give it to another job, once it has lost its state."""
    for job in known:
        same = job.job == planned.job if planned.job is not None else not job.is_over
        if same and (job.name, job.folder) == (planned.name, folder):
            return JobStatus(planned=planned, job=job.job, state=job.state, reason=job.reason)
    return JobStatus(planned=planned, job=planned.job, state=None, reason=None)


def _take_back(directory: RunDirectory) -> None:
    """Cancel all that was submitted; the first job is held still, so nothing has started."""
    if living := _ids(living_jobs(directory)):
        commands.cancel(living)
    chain = read(directory)
    if chain is not None:
        _write(directory, replace(chain, cancelled=True))


def _after_taking_back(directory: RunDirectory, error: RampcliError) -> RampcliError:
    """The same error, and what became of the jobs before."""
    chain = read(directory)
    jobs = [job.job for job in chain.jobs if job.job is not None] if chain else []
    try:
        _take_back(directory)
    except RampcliError as another:
        left = f"{error.message}; jobs may be left in the queue: {another.message}"
        return RampcliError(
            left, keys=error.keys, remedy=f"scancel {' '.join(jobs)}" if jobs else error.remedy
        )
    if not jobs:
        return error
    return RampcliError(
        f"{error.message}; cancelled what was submitted before: {', '.join(jobs)}",
        keys=error.keys,
        remedy=error.remedy,
    )
