"""The launcher `slurm`: a chain of jobs, one for each group of stages with the same processes."""

import shutil
import sys
from collections.abc import Sequence
from functools import partial

from rampcli.config.schema import Config
from rampcli.launch.doctor.check import Check
from rampcli.launch.protocol import (
    SUBMITTED,
    Job,
    JobScript,
    Launch,
    Launcher,
    Outcome,
    StartRanks,
)
from rampcli.launch.slurm import chain
from rampcli.launch.slurm.doctor import check_slurm
from rampcli.launch.slurm.workers import SrunWorkers
from rampcli.planning.run_plan import Resolved
from rampcli.runs.directory import RunDirectory


class SlurmLauncher(Launcher):
    """Submits the jobs of a run to Slurm."""

    runs_here = False
    irrelevant_to_trials = ("account", "qos", "time")

    def scripts(
        self, resolved: Resolved, directory: RunDirectory, consumed_samples: int, /
    ) -> list[JobScript]:
        """Renders the sbatch scripts."""
        # This imports jinja2, which only rendering needs.
        from rampcli.launch.slurm.scripts import render

        return render(resolved, directory, consumed_samples=consumed_samples)

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

    def search_script(self, resolved: Resolved, folder: RunDirectory, /) -> JobScript:
        """Renders the sbatch script of a search."""
        from rampcli.launch.slurm.scripts import render_search  # which imports jinja2

        return render_search(resolved, folder)

    def submit(self, directory: RunDirectory, scripts: Sequence[JobScript], /) -> list[Job]:
        """Submits jobs. The first one starts once all are in the queue."""
        return [chain.with_state(job, "PENDING") for job in chain.submit(directory, scripts).jobs]

    def is_cancelled(self, directory: RunDirectory, /) -> bool:
        """Returns whether the run's chain was cancelled."""
        return chain.is_cancelled(directory)

    def can_ask(self) -> bool:
        """Returns whether squeue is on PATH."""
        return shutil.which("squeue") is not None

    def refuse_active(self, directory: RunDirectory, /) -> None:
        """Checks that no job of the run is in the queue."""
        chain.refuse_active(directory)

    def has_jobs(self, directory: RunDirectory, /) -> bool:
        """Returns whether the run has a chain."""
        return chain.read(directory) is not None

    def jobs(self, directory: RunDirectory, /) -> list[Job]:
        """Returns the jobs of the run's chain."""
        return chain.status(directory)

    def cancel(self, directory: RunDirectory, /) -> list[Job]:
        """Removes waiting jobs from the queue, and asks a running job to save and exit."""
        return chain.cancel(directory)

    def interpreter(self, config: Config, /) -> str | None:
        """Returns `launch.slurm.python`, or the interpreter that submits."""
        slurm = config.launch.slurm
        return None if slurm.container else slurm.python or sys.executable

    def machine_checks(self, resolved: Resolved | None, /) -> list[Check]:
        """Returns the check of Slurm's programs, its controller and its partitions."""
        return [check_slurm(resolved)]


LAUNCHER = SlurmLauncher()
