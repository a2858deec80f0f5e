"""The workers of a stage on this host, which plays all of its nodes."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rampcli.launch.workers import WORKER, Workers, node_environment, reserve_port, start_process


class LocalWorkers(Workers):
    """One worker for each process of a stage."""

    def __init__(self, run_dir: Path, log: Path, *, num_nodes: int, devices: int, gpus: Sequence[str]) -> None:
        """Start `num_nodes` times `devices` workers; what they print goes to `log`."""
        reserved_port = reserve_port()
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(reserved_port.getsockname()[1]), "WORLD_SIZE": str(num_nodes * devices)}
        processes = []
        for node in range(num_nodes):
            environment = node_environment(node, num_nodes=num_nodes, devices=devices, gpus=gpus) | meeting
            for device in range(devices):
                place = {"RANK": str(node * devices + device), "LOCAL_RANK": str(device)}
                processes.append(start_process([sys.executable, "-m", WORKER, str(run_dir)], log, environment | place))
        super().__init__(processes, reserved_port)
        self.log = log

    def end(self) -> None:
        """As it says there; and note in the log how each ended that did not end well."""
        super().end()
        codes = {rank: process.returncode for rank, process in enumerate(self.processes)}
        with self.log.open("a", encoding="utf-8") as log:
            log.writelines(f"rank {rank} ended with exit code {code}\n" for rank, code in codes.items() if code)
