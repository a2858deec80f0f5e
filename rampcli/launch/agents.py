"""One elastic agent (torchrun) per node, all on this host; their workers die with them."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from rampcli.launch.workers import WORKER, Workers, reserve_port, start_process, worker_environment
from rampcli.processors import processors


class Agents(Workers):
    """The agents of one stage.

    Attributes:
        variables: what their environment has besides.
    """

    variables: ClassVar[Mapping[str, str]] = {}

    def __init__(self, run_dir: Path, log: Path, *, num_nodes: int, devices: int, gpus: Sequence[str], grace_s: float) -> None:
        """Start `num_nodes` agents of `devices` workers each; what they print goes to `log`."""
        self.run_dir, self.log, self.gpus, self.grace_s = run_dir, log, gpus, grace_s
        self.num_nodes, self.devices = num_nodes, devices
        reserved_port = reserve_port()
        self.port = reserved_port.getsockname()[1]
        super().__init__([self.start(node) for node in range(num_nodes)], reserved_port)

    def start(self, node: int) -> subprocess.Popen[bytes]:
        """Start the agent of a node, which counts from 0."""
        gpus = self.gpus[node * self.devices : (node + 1) * self.devices]
        # Ranks on one host share its processors; torchrun would give each one thread, and one rank alone all of them.
        environment = worker_environment(threads=max(1, processors() // (self.num_nodes * self.devices)))
        environment |= {
            "CUDA_VISIBLE_DEVICES": ",".join(gpus),
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(round(self.grace_s)),
            **self.variables,
        }
        torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={self.devices}", *self.meeting(node)]
        return start_process([*torchrun, "-m", WORKER, str(self.run_dir)], self.log, environment)

    def meeting(self, node: int) -> list[str]:
        """The options of torchrun that say how the agents find each other."""
        return [
            f"--nnodes={self.num_nodes}",
            f"--node-rank={node}",
            "--master-addr=127.0.0.1",
            f"--master-port={self.port}",
        ]
