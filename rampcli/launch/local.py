"""The workers of a stage on this host, which plays all of its nodes."""

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rampcli.interpreter import python
from rampcli.launch.elastic import World
from rampcli.launch.workers import WORKER, Workers, reserve_port, start_process, worker_environment
from rampcli.lifeline import WAIT
from rampcli.network import LOOPBACK
from rampcli.processors import processors
from rampcli.run_directory import RunDirectory


class LocalWorkers(Workers):
    """The ranks of a world, as one process each. They import what they need, and wait for their turn."""

    def __init__(self, run: RunDirectory, world: World, log: Path, *, devices: int, gpus: Sequence[str]) -> None:
        """Start the workers; their output goes to `log`.

        Args:
            run: the run to train.
            world: the ranks.
            log: file in the run's folder of logs.
            devices: of each node.
            gpus: of all nodes of the stage, in the order of the nodes; empty on the CPU.
        """
        reserved_port = reserve_port()
        # torchrun would give each rank one thread, and one rank alone all of them.
        environment = worker_environment(threads=max(1, processors() // world.ranks)) | {
            "MASTER_ADDR": LOOPBACK,
            "MASTER_PORT": str(reserved_port.getsockname()[1]),
            "WORLD_SIZE": str(world.ranks),
        }
        processes = []
        for rank in range(world.ranks):
            node, device = world.nodes[rank // devices], rank % devices
            place = {
                "RANK": str(rank),
                "LOCAL_RANK": str(device),
                "CUDA_VISIBLE_DEVICES": ",".join(gpus[node * devices : (node + 1) * devices]),
            }
            processes.append(start_process(python(WORKER, str(run.path), WAIT), run, log, environment | place, listens=True))
        super().__init__(processes, reserved_port)
        self.wait = True

    def let_train(self) -> None:
        """Let the workers begin."""
        self.wait = False
        for process in self.processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError), process.stdin:  # one that has ended says so by its exit code
                process.stdin.write(f"{time.time()}\n".encode())

    def ask_to_stop(self) -> None:
        """As `Workers.ask_to_stop`. Workers that wait have nothing to save, and are killed."""
        if self.wait:
            self.kill()
        else:
            super().ask_to_stop()
