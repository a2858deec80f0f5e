"""The workers of a stage on this host, which plays all of its nodes."""

import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rampcli.interpreter import python
from rampcli.launch.elastic import World
from rampcli.launch.workers import WORKER, Workers, start_process, worker_environment
from rampcli.lifeline import LISTENER, WAIT
from rampcli.network import LOOPBACK
from rampcli.processors import processors
from rampcli.run_directory import RunDirectory


class LocalWorkers(Workers):
    """The ranks of a world, as one process each. They import what they need, and wait for their turn."""

    def __init__(
        self, run: RunDirectory, world: World, log: Path, *, devices: int, gpus: Sequence[str]
    ) -> None:
        """Start the workers; their output goes to `log`.

        Args:
            run: the run to train.
            world: the ranks.
            log: file in the run's folder of logs.
            devices: of each node.
            gpus: of all nodes of the stage, in the order of the nodes; empty on the CPU.
        """
        # Rank 0 is given the socket itself, so that nobody else can listen there before it does.
        listener = socket.create_server((LOOPBACK, 0))
        # torchrun would give each rank one thread, and one rank alone all of them.
        environment = worker_environment(threads=max(1, processors() // world.ranks)) | {
            "MASTER_ADDR": LOOPBACK,
            "MASTER_PORT": str(listener.getsockname()[1]),
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
            descriptors = [listener.fileno()] if rank == 0 else []
            if rank == 0:
                place[LISTENER] = str(listener.fileno())
            command = python(WORKER, str(run.path), WAIT)
            processes.append(
                start_process(
                    command, run, log, environment | place, has_input=True, descriptors=descriptors
                )
            )
        super().__init__(processes, listener)
        self.wait = True

    def let_train(self) -> None:
        """Let the workers begin."""
        self.wait = False
        for process in self.processes:
            assert process.stdin is not None
            with (
                suppress(BrokenPipeError),
                process.stdin,
            ):  # one that has ended says so by its exit code
                process.stdin.write(f"{time.time()}\n".encode())

    def ask_to_stop(self) -> None:
        """As `Workers.ask_to_stop`. Workers that wait have nothing to save, and are killed."""
        if self.wait:
            self.kill()
        else:
            super().ask_to_stop()
