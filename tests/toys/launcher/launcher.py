"""Shelves jobs, and says which of them still wait."""

import json
import shlex
import sys
from dataclasses import replace

from rampcli.launch.doctor.check import Check, Status
from rampcli.launch.local.launcher import LAUNCHER as LOCAL
from rampcli.launch.protocol import (
    SEARCH_PROGRAM,
    SUBMITTED,
    Job,
    JobPhase,
    Launcher,
    Outcome,
)


class ToyLauncher(Launcher):
    """A job waits as long as its script is there."""

    runs_here = False

    def scripts(self, resolved, directory, _consumed_samples, /):
        """Returns the script of one job that trains all stages."""
        return [_script(directory, "train", "rampcli.launch.toy.job", resolved.plan.stages)]

    def search_script(self, _resolved, folder, /):
        """Returns the script of a search."""
        return _script(folder, "search", SEARCH_PROGRAM, ())

    def submit(self, directory, jobs, /):
        """Writes the scripts and the list of jobs."""
        directory.make_folder(directory.path / "toy")
        for job in jobs:
            directory.replace(directory.path / job.script, job.text)
        records = [replace(job, job=str(number)).record() for number, job in enumerate(jobs, 1)]
        directory.write_json(_list_of(directory), records)
        return self.jobs(directory)

    def start(self, launch, /):
        """Submits the job."""
        return Outcome(
            run=launch.directory,
            status=SUBMITTED,
            state=launch.directory.read_state(),
            started=True,
            exit_code=0,
            jobs=tuple(self.submit(launch.directory, launch.scripts)),
        )

    def rank_starter(self, resolved, program, /, *, gpus=()):
        """Starts ranks as the local launcher does."""
        return LOCAL.rank_starter(resolved, program, gpus=gpus)

    def has_jobs(self, directory, /):
        """Returns whether the run has a list of jobs."""
        return _list_of(directory).exists()

    def jobs(self, directory, /):
        """Returns the jobs in the list."""
        if not self.has_jobs(directory):
            return []
        return [_job(directory, facts) for facts in json.loads(_list_of(directory).read_text())]

    def cancel(self, directory, /):
        """Deletes the scripts of jobs that wait."""
        active = [job for job in self.jobs(directory) if job.is_active]
        for job in active:
            (directory.path / job.script).unlink()
        return self.jobs(directory) if active else []

    def machine_checks(self, _resolved, /):
        """Reports the shelf."""
        return [Check("toy", Status.ok, "the shelf is there")]


def _list_of(directory):
    return directory.path / "toy" / "jobs.json"


def _job(directory, facts):
    waits = (directory.path / facts["script"]).exists()
    state, phase = ("SHELVED", JobPhase.WAITING) if waits else (None, JobPhase.OVER)
    return Job(**facts, state=state, phase=phase)


def _script(directory, name, program, stages):
    path = directory.path / "toy" / f"{name}.sh"
    words = [sys.executable, "-P", "-m", program, str(directory.path)]
    return Job(
        name=name,
        stages=tuple(stage.stage for stage in stages),
        num_nodes=1,
        global_batch_sizes=tuple(stage.global_batch_size for stage in stages),
        script=f"toy/{name}.sh",
        text=f"{shlex.join(words)} && rm {shlex.quote(str(path))}\n",
    )


LAUNCHER = ToyLauncher()
