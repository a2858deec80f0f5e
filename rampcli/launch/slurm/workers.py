"""The workers that a job starts with srun, on all of its nodes."""

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from rampcli.launch.elastic import World
from rampcli.launch.slurm import commands
from rampcli.launch.workers import (
    NO_MEMORY,
    WorkerLog,
    Workers,
    reserve_port,
    start_process,
    worker_environment,
)
from rampcli.machine.interpreter import python_command
from rampcli.machine.network import LOOPBACK, address_towards
from rampcli.planning.run_plan import Resolved
from rampcli.runs.directory import RunDirectory
from rampcli.settings.rewards import TRUSTED_REWARD

SLURM_OUT_OF_MEMORY = "Out Of Memory"
"""How srun says that a task was killed for lack of memory."""
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
        module: str,
    ) -> None:
        """Starts the ranks of a world; their output is appended to `log`.

        Each runs `module`, which takes the run directory.
        """
        trainer, slurm = resolved.config.trainer, resolved.config.launch.slurm
        address = _rendezvous_address(len(world.nodes))
        rendezvous_socket = reserve_port(address)
        processors = int(os.environ.get("SLURM_CPUS_ON_NODE", "1"))
        threads = slurm.cpus_per_task or max(1, processors // trainer.devices)
        environment = worker_environment(threads=threads) | {
            "MASTER_ADDR": address,
            "MASTER_PORT": str(rendezvous_socket.getsockname()[1]),
            TRUSTED_REWARD: resolved.config.rl.reward,
        }
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
        """Returns the ranks that were killed first, with the signal's name or `NO_MEMORY`.

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
        names[SLURM_OUT_OF_MEMORY] = NO_MEMORY
        how = ended["how"].removesuffix(" (core dumped)")
        return dict.fromkeys(ranks, names.get(how, how))


def _rendezvous_address(num_nodes: int) -> str:
    """Returns the address of this node, the job's first, as the other nodes reach it."""
    if num_nodes == 1:
        return LOOPBACK
    others = commands.nodes_named(os.environ["SLURM_JOB_NODELIST"])[1:]
    return address_towards(commands.address_of(others[0]))
