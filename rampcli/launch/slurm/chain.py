"""The record of a run's chain of jobs: slurm/jobs.json."""

import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rampcli.errors import DamagedFileError
from rampcli.files.guarded_folder import link_refused
from rampcli.files.records import COUNT, POSITIVE, read_json
from rampcli.launch.protocol import Job
from rampcli.launch.slurm import SEARCH, SLURM_FOLDER
from rampcli.launch.slurm.commands import JOB_ID
from rampcli.runs.directory import RunDirectory
from rampcli.runs.event_kinds import TEXT_OR_NULL

JOB_SHAPE = {
    "job": TEXT_OR_NULL,
    "name": str,
    "stages": [COUNT],
    "num_nodes": POSITIVE,
    "global_batch_sizes": [COUNT],
    "script": str,
    "dependency": TEXT_OR_NULL,
}
CHAIN_SHAPE = {"jobs": [JOB_SHAPE], "submitted": (float, None), "cancelled": bool}
"""Shape of slurm/jobs.json, in the notation of `rampcli.files.records`."""
MOST_JOBS = 10_000
"""Slurm's default MaxJobCount. The IDs of this many jobs fit on a command line."""
MOST_CHAIN_BYTES = 16 * 2**20
_ALLOWED = {
    "job": JOB_ID,
    "dependency": JOB_ID,
    "name": re.compile(r"[A-Za-z0-9._-]+"),
    "script": re.compile(rf"{SLURM_FOLDER}/(stage_[0-9]+|{SEARCH})\.sbatch"),
}
"""What text fields of a recorded job may contain: they reach Slurm's command line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """The contents of slurm/jobs.json.

    Attributes:
        submitted: when the last job was submitted, in seconds since 1970; None if submission
            was interrupted. Until then the first job is held, so nothing has started.
        cancelled: True if the jobs were asked to end.
    """

    jobs: tuple[Job, ...]
    submitted: float | None = None
    cancelled: bool = False


def read(directory: RunDirectory) -> Chain:
    """Returns the chain of a run, which has no jobs if slurm/jobs.json does not exist.

    Raises:
        DamagedFileError: slurm/jobs.json is not what a submission writes.
        UsageError: slurm/jobs.json or its folder is a symbolic link.
    """
    path = _record(directory)
    for each in (path.parent, path):
        if os.path.islink(each):
            raise link_refused(each)
    try:
        facts = read_json(path, CHAIN_SHAPE, most_bytes=MOST_CHAIN_BYTES)
        if len(facts["jobs"]) > MOST_JOBS:
            raise DamagedFileError(
                f"{path} is damaged: it has {len(facts['jobs']):,} jobs; the limit is {MOST_JOBS:,}"
            )
        jobs = tuple(_read_job(path, position, job) for position, job in enumerate(facts["jobs"]))
    except FileNotFoundError:
        return Chain(jobs=())
    except DamagedFileError as error:
        error.remedies = (f"delete {path} once `squeue --me` lists no job of the run",)
        raise
    return Chain(jobs=jobs, submitted=facts["submitted"], cancelled=facts["cancelled"])


def _read_job(path: Path, position: int, facts: dict[str, Any]) -> Job:
    for field, pattern in _ALLOWED.items():
        if facts[field] is not None and not pattern.fullmatch(facts[field]):
            raise DamagedFileError(
                f"{path} is damaged: jobs[{position}].{field} is {facts[field]!r}"
            )
    tuples = {name: tuple(facts[name]) for name in ("stages", "global_batch_sizes")}
    return Job(**{name: facts[name] for name in JOB_SHAPE} | tuples)


def write(directory: RunDirectory, chain: Chain) -> None:
    """Replaces the chain of a run."""
    records = [job.record() for job in chain.jobs]
    directory.write_json(_record(directory), asdict(chain) | {"jobs": records})


def _record(directory: RunDirectory) -> Path:
    return directory.path / SLURM_FOLDER / "jobs.json"
