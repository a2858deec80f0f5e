"""What a job runs: `python -m rampcli.launch.slurm.job RUN_DIR STAGE...`.

It supervises workers on all nodes of the job. With the word `tune` in place of stages, it runs
another program, so that one template serves both.
"""

import os
import runpy
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rampcli.config import snapshot
from rampcli.config.layers import sources_named
from rampcli.errors import EXIT_INTERRUPTED, RampcliError
from rampcli.launch.observer import Observer
from rampcli.launch.protocol import SEARCH_PROGRAM
from rampcli.launch.run_lock import JOB_WAIT_S, lock_run
from rampcli.launch.slurm import SEARCH, commands
from rampcli.launch.slurm.launcher import LAUNCHER
from rampcli.launch.slurm.settings import SlurmConfig
from rampcli.launch.supervise import Supervisor
from rampcli.launch.workers import worker_program
from rampcli.machine.lifeline import StopSignals, catch_stop_signals
from rampcli.planning.run_plan import Resolved, run_plan
from rampcli.runs.directory import COMPLETE, PREEMPTED, RunDirectory
from rampcli.runs.manifest import consumed_samples
from rampcli.runs.rows import read_rows

FRUITLESS_STARTS = 3
"""After this many starts without a checkpoint, the job is not requeued."""


def main() -> None:
    """Trains stages. Exit code 0 tells Slurm that the next job of the chain may start."""
    if sys.argv[2:] == [SEARCH]:
        runpy.run_module(SEARCH_PROGRAM, run_name="__main__")
    with catch_stop_signals() as signals:
        try:
            code = train_stages(
                RunDirectory(Path(sys.argv[1])), [int(stage) for stage in sys.argv[2:]], signals
            )
        except RampcliError as error:
            print(error, file=sys.stderr, flush=True)  # noqa: T201
            code = error.exit_code
    sys.exit(code)


def train_stages(directory: RunDirectory, stages: Sequence[int], signals: StopSignals) -> int:
    """Trains the rest of some stages, and returns the exit code: 0 once they are complete.

    Raises:
        RampcliError: the workers failed, or the run has not reached these stages.
    """
    if LAUNCHER.is_cancelled(directory):
        return 0
    with lock_run(directory, wait_s=JOB_WAIT_S), directory.recording_failure():
        consumed = consumed_samples(directory)
        resolved = run_plan(snapshot.read(directory.config), consumed_samples=consumed)
        if _already_trained(resolved, stages, directory, consumed):
            return 0
        supervisor = Supervisor(
            resolved=resolved,
            run=directory,
            start=LAUNCHER.rank_starter(resolved, worker_program(resolved.config)),
            observer=Observer(),
            signals=signals,
        )
        state = supervisor.run_stages(one_stage=True)
        if state["status"] != PREEMPTED:
            return 0
        if signals.signal == signal.SIGUSR1 and not LAUNCHER.is_cancelled(directory):
            with sources_named(resolved.config):
                check_progress(directory)
    return requeue_this_job(directory)


def _already_trained(
    resolved: Resolved, stages: Sequence[int], directory: RunDirectory, consumed_samples: int
) -> bool:
    """Returns whether the run is past some stages, as in a job that is requeued after its work."""
    if resolved.plan.is_complete(consumed_samples):
        return (directory.read_state() or {}).get("status") == COMPLETE
    current = resolved.plan.stage_at(consumed_samples).stage
    if current < min(stages):
        raise RampcliError(
            f"{directory.path} is at stage {current}, but this job trains stage {stages[0]}",
            remedy="the same command, which submits the remaining jobs",
        )
    return current > max(stages)


def check_progress(directory: RunDirectory) -> None:
    """Checks that a job saves a step within its time limit, so that it is not requeued for ever.

    Raises:
        RampcliError: `FRUITLESS_STARTS` starts have saved nothing.
    """
    starts = 0
    for row in read_rows(directory.events):
        starts = 0 if row["event"] == "checkpoint" else starts + (row["event"] == "launch")
    if starts < FRUITLESS_STARTS:
        return
    raise RampcliError(
        f"the job started its workers {starts} times without saving a checkpoint:"
        " its time limit is too short",
        keys=(SlurmConfig.time,),
        remedy="a longer launch.slurm.time, or a shorter launch.grace_s: the job is asked to save"
        " one minute plus launch.grace_s before its time limit",
    )


def requeue_this_job(directory: RunDirectory) -> int:
    """Puts this job back into the queue, and returns the exit code.

    A cancelled chain is not requeued, nor is a job that Slurm has already ended or requeued. If
    this node was lost, the job may already run again on another one.
    """
    if LAUNCHER.is_cancelled(directory):
        return 0
    job, restarts = os.environ["SLURM_JOB_ID"], int(os.environ.get("SLURM_RESTART_COUNT", 0))
    is_running = any(known.state == "RUNNING" for known in commands.jobs_by_id([job]))
    if is_running and commands.restarts(job) == restarts:
        commands.requeue(job)
    return EXIT_INTERRUPTED


if __name__ == "__main__":
    main()
