"""What a job runs: `python -m rampcli.launch.slurm.job RUN_DIR STAGE...`.

It supervises workers on all nodes of the job. With the word `tune` in place of stages, it runs
another program, so that one template serves both.
"""

import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from rampcli.config import snapshot
from rampcli.config.layers import sources_named
from rampcli.errors import EXIT_INTERRUPTED, RampcliError
from rampcli.interpreter import python_command
from rampcli.launch.elastic import World
from rampcli.launch.observer import Observer
from rampcli.launch.record_failure import record_failure
from rampcli.launch.run_lock import lock_run
from rampcli.launch.slurm import SEARCH, chain, commands
from rampcli.launch.stop_signals import catch_stop_signals
from rampcli.launch.supervise import Supervisor
from rampcli.launch.worker_log import WorkerLog
from rampcli.launch.workers import (
    WORKER,
    Workers,
    reserve_port,
    start_process,
    trust_reward,
    worker_environment,
    worker_program,
)
from rampcli.lifeline import StopSignals
from rampcli.network import LOOPBACK, address_towards
from rampcli.planning.run_plan import Resolved, run_plan
from rampcli.runs.directory import COMPLETE, PREEMPTED, RunDirectory
from rampcli.runs.manifest import consumed_samples
from rampcli.runs.rows import read_rows

SEARCH_PROGRAM = "rampcli.tune.job"
"""Program for which the word `SEARCH` stands."""
LOCK_WAIT_S = 120.0
"""Seconds to wait for the run's lock: the same job may still hold it on a node that was lost."""
FRUITLESS_STARTS = 3
"""After this many starts without a checkpoint, the job is not requeued."""
_TASK_ENDED = re.compile(r"srun: error: \S+: tasks? (?P<ranks>\d[\d,-]*): (?P<how>.+)", re.ASCII)


class SrunWorkers(Workers):
    """One srun process and the workers that it starts on all nodes.

    Slurm may need up to KillWait to end the workers.
    """

    exit_timeout_s = 60.0
    stop_signal = signal.SIGUSR1  # srun passes it on; SIGTERM would end the job step

    def __init__(
        self,
        resolved: Resolved,
        directory: RunDirectory,
        world: World,
        log: Path,
        *,
        module: str = WORKER,
    ) -> None:
        """Starts the ranks of a world; their output is appended to `log`.

        Each runs `module`, which takes the run directory.
        """
        trainer, slurm = resolved.config.trainer, resolved.config.launch.slurm
        address = _rendezvous_address(len(world.nodes))
        rendezvous_socket = reserve_port(address)
        threads = slurm.cpus_per_task or _processors_per_task(trainer.devices)
        environment = worker_environment(threads=threads)
        port = rendezvous_socket.getsockname()[1]
        environment |= {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
        interpreter = slurm.python or sys.executable
        command = [
            *("srun", "--kill-on-bad-exit=1", "--export=ALL"),
            f"--nodes={len(world.nodes)}",
            f"--ntasks={world.ranks + resolved.config.rl.rollout_ranks}",
            f"--ntasks-per-node={trainer.devices}",
            *([] if slurm.cpus_per_task is None else [f"--cpus-per-task={slurm.cpus_per_task}"]),
            *slurm.srun_args,
            *slurm.container,
            *python_command(module, str(directory.path), interpreter=interpreter),
        ]
        self.log = WorkerLog(log)
        super().__init__([start_process(command, directory, log, environment)], rendezvous_socket)

    def kill(self) -> None:
        """Ends the job step. srun has to live until then: without it, the ranks would stay."""
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        with suppress(subprocess.TimeoutExpired):
            for process in self.processes:
                process.wait(self.exit_timeout_s)
        super().kill()

    def killed(self) -> dict[int, str]:
        """Returns the ranks that a signal killed first, with the signal's name.

        srun reports them in the log. The ranks that it reports later were killed by srun.
        """
        ended = next(filter(None, map(_TASK_ENDED.fullmatch, self.log.lines())), None)
        if ended is None or ended["how"].startswith("Exited"):
            return {}
        ends = [part.partition("-") for part in ended["ranks"].split(",")]
        ranks = [
            rank for first, _, last in ends for rank in range(int(first), int(last or first) + 1)
        ]
        names = {signal.strsignal(known): known.name for known in signal.Signals}
        how = ended["how"].removesuffix(" (core dumped)")
        return dict.fromkeys(ranks, names.get(how, how))


def _rendezvous_address(num_nodes: int) -> str:
    """Returns the address of this node, the job's first, as the other nodes reach it."""
    if num_nodes == 1:
        return LOOPBACK
    others = commands.nodes_named(os.environ["SLURM_JOB_NODELIST"])[1:]
    return address_towards(commands.address_of(others[0]))


def _processors_per_task(devices: int) -> int:
    return max(1, int(os.environ.get("SLURM_CPUS_ON_NODE", "1")) // devices)


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
    if chain.is_cancelled(directory):
        return 0
    with lock_run(directory, wait_s=LOCK_WAIT_S), record_failure(directory):
        consumed = consumed_samples(directory)
        resolved = run_plan(snapshot.read(directory.config), consumed_samples=consumed)
        if _already_trained(resolved, stages, directory, consumed):
            return 0
        trust_reward(resolved.config)
        supervisor = Supervisor(
            resolved=resolved,
            run=directory,
            start=partial(SrunWorkers, resolved, directory, module=worker_program(resolved.config)),
            observer=Observer(),
            signals=signals,
        )
        state = supervisor.run_stages(one_stage=True)
        if state["status"] != PREEMPTED:
            return 0
        if signals.signal == signal.SIGUSR1 and not chain.is_cancelled(directory):
            with sources_named(resolved.config):
                check_progress(directory)
    return requeue(directory)


def _already_trained(
    resolved: Resolved, stages: Sequence[int], directory: RunDirectory, consumed_samples: int
) -> bool:
    """Returns whether the run is past some stages, as in a job that is requeued after its work.

    Raises:
        RampcliError: the run has not reached the stages yet.
    """
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
        keys=("launch.slurm.time",),
        remedy="a longer launch.slurm.time, or a shorter launch.grace_s: the job is asked to save"
        " one minute plus launch.grace_s before its time limit",
    )


def requeue(directory: RunDirectory) -> int:
    """Puts this job back into the queue, and returns the exit code.

    A cancelled chain is not requeued, nor is a job that Slurm has already ended or requeued. If
    this node was lost, the job may already run again on another one.
    """
    if chain.is_cancelled(directory):
        return 0
    job, own_restarts = os.environ["SLURM_JOB_ID"], int(os.environ.get("SLURM_RESTART_COUNT", 0))
    is_running = any(known.state == "RUNNING" for known in commands.jobs_by_id([job]))
    if is_running and commands.restarts(job) == own_restarts:
        commands.requeue(job)
    return EXIT_INTERRUPTED


if __name__ == "__main__":
    main()
