"""The chain of a run's jobs: submitted as a whole, recorded in slurm/jobs.json, and cancelled."""

import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rampcli.errors import DamagedFileError, RampcliError, UsageError
from rampcli.guarded_folder import link_refused
from rampcli.launch.protocol import Job, JobRecord, JobScript, Phase
from rampcli.launch.slurm import FOLDER, SEARCH, commands
from rampcli.records import COUNT, POSITIVE, read_json
from rampcli.runs.directory import RunDirectory

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
"""Shape of slurm/jobs.json, in the notation of `rampcli.records`."""
MOST_JOBS = 10_000
"""Slurm's default MaxJobCount. The IDs of this many jobs fit on a command line."""
MOST_BYTES = 16 * 2**20
_ALLOWED = {
    "job": commands.JOB_ID,
    "dependency": commands.JOB_ID,
    "name": re.compile(r"[A-Za-z0-9._-]+"),
    "script": re.compile(rf"{FOLDER}/(stage_[0-9]+|{SEARCH})\.sbatch"),
}
"""What text fields of a recorded job may contain: they reach Slurm's command line."""
_CAN_SAVE = frozenset({"RUNNING", "SUSPENDED"})
_PHASES = {"RUNNING": Phase.RUNNING, "COMPLETING": Phase.ENDING, None: Phase.OVER} | dict.fromkeys(
    commands.OVER, Phase.OVER
)
"""Phases of the states that Slurm reports. In other states, a job waits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """The contents of slurm/jobs.json.

    Attributes:
        jobs: jobs in order.
        submitted: when the last job was submitted, in seconds since 1970; None if submission
            was interrupted. Until then the first job is held, so nothing has started.
        cancelled: True if the jobs were asked to end.
    """

    jobs: tuple[JobRecord, ...]
    submitted: float | None = None
    cancelled: bool = False


def read(directory: RunDirectory) -> Chain | None:
    """Returns the chain of a run, or None if slurm/jobs.json does not exist.

    Raises:
        DamagedFileError: slurm/jobs.json is not what a submission writes.
        UsageError: slurm/jobs.json or its folder is a symbolic link.
    """
    path = _record(directory)
    for each in (path.parent, path):
        if os.path.islink(each):
            raise link_refused(each)
    try:
        facts = read_json(path, CHAIN, most_bytes=MOST_BYTES)
        if len(facts["jobs"]) > MOST_JOBS:
            raise DamagedFileError(
                f"{path} is damaged: it has {len(facts['jobs']):,} jobs; the limit is {MOST_JOBS:,}"
            )
        jobs = tuple(_read_job(path, position, job) for position, job in enumerate(facts["jobs"]))
    except FileNotFoundError:
        return None
    except DamagedFileError as error:
        error.remedies = (f"delete {path} once `squeue --me` lists no job of the run",)
        raise
    return Chain(jobs=jobs, submitted=facts["submitted"], cancelled=facts["cancelled"])


def _read_job(path: Path, position: int, facts: dict[str, Any]) -> JobRecord:
    for field, pattern in _ALLOWED.items():
        if facts[field] is not None and not pattern.fullmatch(facts[field]):
            raise DamagedFileError(
                f"{path} is damaged: jobs[{position}].{field} is {facts[field]!r}"
            )
    tuples = {name: tuple(facts[name]) for name in ("stages", "global_batch_sizes")}
    return JobRecord(**{name: facts[name] for name in JOB} | tuples)


def with_state(record: JobRecord, state: str | None, *, reason: str | None = None) -> Job:
    """Returns a recorded job with the state that Slurm reports; None if Slurm does not list it."""
    phase = _PHASES.get(state, Phase.WAITING)
    return Job(**asdict(record), state=state, reason=reason, phase=phase)


def is_cancelled(directory: RunDirectory) -> bool:
    """Returns whether the run's jobs were asked to end and to stay out of the queue."""
    chain = read(directory)
    return chain is not None and chain.cancelled


def submit(directory: RunDirectory, scripts: Sequence[JobScript]) -> Chain:
    """Writes the scripts and submits them, each dependent on the success of the previous job.

    Either all jobs are submitted or none: the first job is held until the last one is in the
    queue. The caller holds the run's lock.

    Raises:
        UsageError: jobs of the run are already in the queue.
        RampcliError: Slurm refused a job; the jobs before it are cancelled.
    """
    refuse_active(directory)
    for folder in (directory.logs, directory.path / FOLDER):
        directory.make_folder(folder)
    # Slurm opens the logs itself, and would follow a link.
    if link := next(
        (Path(entry) for entry in os.scandir(directory.logs) if entry.is_symlink()), None
    ):
        raise link_refused(link)
    for script in scripts:
        directory.replace(script.path, script.text)
    chain = _write(directory, Chain(jobs=tuple(_planned(directory, script) for script in scripts)))
    try:
        for position, script in enumerate(scripts):
            chain = _write(directory, _submit_job(directory, chain, position, script))
        chain = _write(directory, replace(chain, submitted=round(time.time(), 3)))
        commands.release(str(chain.jobs[0].job))
    except RampcliError as error:
        raise _withdraw_after(directory, error) from error
    except BaseException:
        _withdraw(directory)
        raise
    return chain


def refuse_active(directory: RunDirectory) -> None:
    """Checks that no job of a run is in the queue. The caller holds the run's lock.

    Jobs of an interrupted submission have not started; they are cancelled.

    Raises:
        UsageError: a job waits or runs.
        RampcliError: Slurm does not answer.
    """
    chain = read(directory)
    if chain is not None and chain.submitted is None and not chain.cancelled:
        _withdraw(directory)
    if active := active_jobs(directory):
        jobs = ", ".join(_ids(active))
        raise UsageError(
            f"{directory.path} has jobs in the queue: {jobs}",
            remedy=f"rampcli status {directory.path}, or rampcli cancel {directory.path};"
            " or another name= or run_dir=",
        )


def status(directory: RunDirectory) -> list[Job]:
    """Returns the jobs of a run's chain in order, or an empty list if it has no chain.

    Raises:
        RampcliError: Slurm does not answer.
    """
    chain = read(directory)
    if chain is None:
        return []
    ids = [job.job for job in chain.jobs if job.job is not None]
    # After an interrupted submission, the last ID may not have been recorded.
    known = (
        commands.jobs_by_id(ids) if len(ids) == len(chain.jobs) else commands.jobs_of_this_user()
    )
    return [_find(planned, known, folder=str(directory.path.resolve())) for planned in chain.jobs]


def active_jobs(directory: RunDirectory) -> list[Job]:
    """Returns the jobs of a run that wait, run or will run again.

    Raises:
        RampcliError: Slurm does not answer.
    """
    return [job for job in status(directory) if job.is_active]


def cancel(directory: RunDirectory) -> list[Job]:
    """Removes waiting jobs from the queue, and asks a running job to save and exit.

    Returns:
        The jobs of the run, with their states afterwards; empty if none was active.

    Raises:
        RampcliError: Slurm does not answer.
    """
    chain = read(directory)
    if chain is None or not (active := active_jobs(directory)):
        return []
    # From here on, a job that starts, or is about to requeue itself, sees that it is cancelled.
    _write(directory, replace(chain, cancelled=True))
    commands.cancel(_ids(active), only_waiting=True)
    active = active_jobs(directory)
    if running := _ids(job for job in active if job.state in _CAN_SAVE):
        commands.ask_to_save(running)
    if others := _ids(job for job in active if job.state not in _CAN_SAVE | {"COMPLETING"}):
        commands.cancel(others)
    return status(directory)


def _ids(jobs: Iterable[Job]) -> list[str]:
    return [job.job for job in jobs if job.job is not None]


def _record(directory: RunDirectory) -> Path:
    return directory.path / FOLDER / "jobs.json"


def _write(directory: RunDirectory, chain: Chain) -> Chain:
    directory.write_json(_record(directory), asdict(chain))
    return chain


def _planned(directory: RunDirectory, script: JobScript) -> JobRecord:
    return JobRecord(
        job=None,
        name=script.job_name,
        stages=tuple(stage.stage for stage in script.stages),
        num_nodes=script.num_nodes,
        global_batch_sizes=tuple(stage.global_batch_size for stage in script.stages),
        script=str(script.path.relative_to(directory.path)),
        dependency=None,
    )


def _submit_job(directory: RunDirectory, chain: Chain, position: int, script: JobScript) -> Chain:
    """Submits one job, and returns the chain with its ID."""
    previous = chain.jobs[position - 1].job if position else None
    order = (
        ["--hold"]
        if previous is None
        else [f"--dependency=afterok:{previous}", "--kill-on-invalid-dep=yes"]
    )
    folder = directory.path.resolve()
    # These options override the script's. Name and folder identify the job later.
    options = [*order, f"--job-name={script.job_name}", f"--chdir={folder}"]
    job = replace(
        chain.jobs[position],
        job=commands.submit(script.path.resolve(), folder=folder, options=options),
        dependency=previous,
    )
    return replace(chain, jobs=(*chain.jobs[:position], job, *chain.jobs[position + 1 :]))


def _find(planned: JobRecord, known: Sequence[commands.QueuedJob], *, folder: str) -> Job:
    """Returns a job with the state that Slurm reports.

    An ID alone does not identify the job: after losing its state, Slurm may reuse IDs.
    """
    for job in known:
        same = job.job == planned.job if planned.job is not None else not job.is_over
        if same and (job.name, job.folder) == (planned.name, folder):
            return with_state(replace(planned, job=job.job), job.state, reason=job.reason)
    return with_state(planned, None)


def _withdraw(directory: RunDirectory) -> None:
    """Cancels all submitted jobs while the first one is still held, so nothing has started."""
    if active := _ids(active_jobs(directory)):
        commands.cancel(active)
    chain = read(directory)
    if chain is not None:
        _write(directory, replace(chain, cancelled=True))


def _withdraw_after(directory: RunDirectory, error: RampcliError) -> RampcliError:
    """Cancels all submitted jobs, and returns the error with a note about them."""
    chain = read(directory)
    jobs = [job.job for job in chain.jobs if job.job is not None] if chain else []
    try:
        _withdraw(directory)
    except RampcliError as another:
        return RampcliError(
            f"{error.message}; jobs may remain in the queue: {another.message}",
            keys=error.keys,
            remedy=f"scancel {' '.join(jobs)}" if jobs else error.remedies,
        )
    if not jobs:
        return error
    return RampcliError(
        f"{error.message}; cancelled the jobs that were already submitted: {', '.join(jobs)}",
        keys=error.keys,
        remedy=error.remedies,
    )
