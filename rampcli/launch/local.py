"""The workers of a stage on this host, which plays all of its nodes."""

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rampcli.launch.workers import WORKER, Workers, node_environment, reserve_port, start_process
from rampcli.lifeline import WAIT


class LocalWorkers(Workers):
    """One worker for each process of a stage. They import what they need, and wait for their turn."""

    def __init__(self, run_dir: Path, log: Path, *, num_nodes: int, devices: int, gpus: Sequence[str]) -> None:
        """Start `num_nodes` times `devices` workers; what they print goes to `log`."""
        reserved_port = reserve_port()
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(reserved_port.getsockname()[1]), "WORLD_SIZE": str(num_nodes * devices)}
        processes = []
        for node in range(num_nodes):
            environment = node_environment(node, num_nodes=num_nodes, devices=devices, gpus=gpus) | meeting
            for device in range(devices):
                place = {"RANK": str(node * devices + device), "LOCAL_RANK": str(device)}
                processes.append(start_process([sys.executable, "-m", WORKER, str(run_dir), WAIT], log, environment | place, listens=True))
        super().__init__(processes, reserved_port)
        self.log = log
        self.wait = True

    def let_train(self) -> None:
        """It is their turn."""
        self.wait = False
        for process in self.processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError), process.stdin:  # one that has ended says so by its exit code
                process.stdin.write(f"{time.time()}\n".encode())

    def ask_to_stop(self) -> None:
        """As it says there; those that wait have nothing to save."""
        if self.wait:
            self.kill()
        else:
            super().ask_to_stop()

    def end(self) -> None:
        """As it says there; the log says of each that has ended otherwise than well how it did."""
        codes = [process.poll() for process in self.processes]
        super().end()
        with self.log.open("a", encoding="utf-8") as log:
            log.writelines(f"rank {rank} ended with exit code {code}\n" for rank, code in enumerate(codes) if code)
