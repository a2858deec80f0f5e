"""What a job of the chain runs: `python -m rampcli.launch.slurm.job RUN_DIR STAGE...`. It supervises workers on all nodes of the job."""

import os
import re
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rampcli.config import snapshot
from rampcli.config.layers import sources_named
from rampcli.config.run_plan import Resolved, run_plan
from rampcli.errors import EXIT_INTERRUPTED, RampcliError
from rampcli.interpreter import python
from rampcli.launch.elastic import World
from rampcli.launch.failures import noting_failure
from rampcli.launch.observer import Observer
from rampcli.launch.printed import Printed
from rampcli.launch.run_lock import locked
from rampcli.launch.slurm import chain, commands
from rampcli.launch.stop_signals import noting_stop_signals
from rampcli.launch.supervise import Supervisor
from rampcli.launch.workers import WORKER, Workers, reserve_port, start_process, worker_environment
from rampcli.lifeline import StopSignals
from rampcli.network import LOOPBACK, address_towards
from rampcli.run_directory import COMPLETE, PREEMPTED, RunDirectory, read_rows

OLD_SUPERVISOR_S = 120.0
"""How long the same job, on a node that was lost, may take to let go of the run."""
FRUITLESS_STARTS = 3
"""So many without a checkpoint, and the job does not go back into the queue."""
_ENDED = re.compile(r"srun: error: \S+: tasks? (?P<ranks>\d[\d,-]*): (?P<how>.+)", re.ASCII)


class Step(Workers):
    """A srun, and the workers that it started on all nodes. Slurm takes its time (KillWait) to end them."""

    lost_s = 60.0
    stop_signal = signal.SIGUSR1  # at SIGTERM srun would end the step

    def __init__(
        self, resolved: Resolved, directory: RunDirectory, world: World, log: Path
    ) -> None:
        """Start the ranks of a world; their output goes to `log`."""
        trainer, slurm = resolved.config.trainer, resolved.config.launch.slurm
        address = _address(len(world.nodes))
        meeting_socket = reserve_port(address)
        environment = worker_environment(threads=slurm.cpus_per_task or _threads(trainer.devices))
        environment |= {"MASTER_ADDR": address, "MASTER_PORT": str(meeting_socket.getsockname()[1])}
        command = [
            *("srun", "--kill-on-bad-exit=1", "--export=ALL"),
            f"--nodes={len(world.nodes)}",
            f"--ntasks={world.ranks}",
            f"--ntasks-per-node={trainer.devices}",
            *([] if slurm.cpus_per_task is None else [f"--cpus-per-task={slurm.cpus_per_task}"]),
            *slurm.srun_args,
            *slurm.container,
            *python(WORKER, str(directory.path), interpreter=slurm.python or sys.executable),
        ]
        self.printed = Printed(log)
        super().__init__([start_process(command, directory, log, environment)], meeting_socket)

    def killed(self) -> dict[int, str]:
        """As `Workers.killed`. srun says it in the log, first of the rank that ended first; the others it ends itself."""
        ended = next(filter(None, map(_ENDED.fullmatch, self.printed.lines())), None)
        if ended is None or ended["how"].startswith("Exited"):
            return {}
        ends = [part.partition("-") for part in ended["ranks"].split(",")]
        ranks = [
            rank for first, _, last in ends for rank in range(int(first), int(last or first) + 1)
        ]
        names = {signal.strsignal(known): known.name for known in signal.Signals}
        how = ended["how"].removesuffix(" (core dumped)")
        return dict.fromkeys(ranks, names.get(how, how))


def _address(num_nodes: int) -> str:
    """Returns the address of this node, the job's first, where the ranks on the first nodes of the job meet."""
    if num_nodes == 1:
        return LOOPBACK
    others = commands.nodes_named(os.environ["SLURM_JOB_NODELIST"])[1:]
    return address_towards(commands.address_of(others[0]))


def _threads(devices: int) -> int:
    return max(1, int(os.environ.get("SLURM_CPUS_ON_NODE", "1")) // devices)


def main() -> None:
    """Train stages, and leave with an exit code that tells Slurm whether the next job may start."""
    with noting_stop_signals() as signals:
        try:
            code = go_on(
                RunDirectory(Path(sys.argv[1])), [int(stage) for stage in sys.argv[2:]], signals
            )
        except RampcliError as error:
            print(error, file=sys.stderr, flush=True)  # noqa: T201
            code = error.exit_code
    sys.exit(code)


def go_on(directory: RunDirectory, stages: Sequence[int], signals: StopSignals) -> int:
    """Train what is left of the stages; the exit code. 0 at their end.

    Raises:
        RampcliError: the workers failed, or the run does not stand in these stages.
    """
    if chain.is_cancelled(directory):
        return 0
    with locked(directory, wait_s=OLD_SUPERVISOR_S), noting_failure(directory):
        before = directory.consumed_samples()
        resolved = run_plan(snapshot.read(directory.config), consumed_samples=before)
        if _are_behind(resolved, stages, directory, before):
            return 0
        supervisor = Supervisor(
            resolved=resolved,
            run=directory,
            start=partial(Step, resolved, directory),
            observer=Observer(),
            signals=signals,
        )
        state = supervisor.go_through(one_stage=True)
        if state["status"] != PREEMPTED:
            return 0
        if signals.signal == signal.SIGUSR1 and not chain.is_cancelled(directory):
            with sources_named(resolved.config):
                check_progress(directory)
    return _back_into_the_queue(directory)


def _are_behind(
    resolved: Resolved, stages: Sequence[int], directory: RunDirectory, consumed_samples: int
) -> bool:
    """Whether the run has passed the stages already, as where a job is requeued after its work was done.

    Raises:
        RampcliError: it has not come to them yet.
    """
    if resolved.plan.is_complete(consumed_samples):
        return (directory.read_state() or {}).get("status") == COMPLETE
    current = resolved.plan.stage_at(consumed_samples).stage
    if current < min(stages):
        raise RampcliError(
            f"{directory.path} stands in stage {current}, and this job is for stage {stages[0]}",
            remedy=f"sbatch {directory.path}/slurm/stage_{current}.sbatch first, or rampcli pretrain, which submits what is left",
        )
    return current > max(stages)


def check_progress(directory: RunDirectory) -> None:
    """A job that gets no step saved in its time is not to go back into the queue for ever.

    Raises:
        RampcliError: it has been so several times.
    """
    starts = 0
    for row in read_rows(directory.events):
        starts = 0 if row["event"] == "checkpoint" else starts + (row["event"] == "launch")
    if starts < FRUITLESS_STARTS:
        return
    raise RampcliError(
        f"the job was asked to save {starts} times before there was a step to save: its time limit is too short",
        keys=("launch.slurm.time",),
        remedy="a longer launch.slurm.time, or a shorter launch.grace_s: the job is asked to save that and a minute before its end",
    )


def _back_into_the_queue(directory: RunDirectory) -> int:
    """Have this job go on later, unless somebody cancelled it, or Slurm has ended it or put it back already; the exit code."""
    if chain.is_cancelled(directory):
        return 0
    job = os.environ["SLURM_JOB_ID"]
    if any(known.state == "RUNNING" for known in commands.jobs_by_id([job])):
        commands.requeue(job)
    return EXIT_INTERRUPTED


if __name__ == "__main__":
    main()
