"""One elastic agent (torchrun) per node, all on this host; their workers die with them."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from rampcli.launch.workers import Workers
from rampcli.lifeline import SUPERVISOR, die_with
from rampcli.processors import processors

WORKER = "rampcli.engine.worker"
OPENMP_SPINS = "3000"


class Agents(Workers):
    """The agents of one stage.

    Attributes:
        variables: what their environment has besides.
    """

    variables: ClassVar[Mapping[str, str]] = {}

    def __init__(self, run_dir: Path, log: Path, *, num_nodes: int, devices: int, gpus: Sequence[str], grace_s: float) -> None:
        """Start `num_nodes` agents of `devices` workers each; what they print goes to `log`."""
        log.parent.mkdir(parents=True, exist_ok=True)
        self.run_dir, self.log, self.gpus, self.grace_s = run_dir, log, gpus, grace_s
        self.num_nodes, self.devices = num_nodes, devices
        self.port = reserve_port()
        super().__init__([self.start(node) for node in range(num_nodes)])

    def start(self, node: int) -> subprocess.Popen[bytes]:
        """Start the agent of a node, which counts from 0."""
        gpus = self.gpus[node * self.devices : (node + 1) * self.devices]
        environment = environment_of(gpus, workers_on_host=self.num_nodes * self.devices)
        environment |= {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(round(self.grace_s)), **self.variables}
        options = [f"--nproc-per-node={self.devices}", *self.meeting(node)]
        return self.start_module("torch.distributed.run", [*options, "-m", WORKER, str(self.run_dir)], environment)

    def meeting(self, node: int) -> list[str]:
        """The options of torchrun that say how the agents find each other."""
        return [
            f"--nnodes={self.num_nodes}",
            f"--node-rank={node}",
            "--master-addr=127.0.0.1",
            f"--master-port={self.port.getsockname()[1]}",
        ]

    def start_module(self, module: str, words: Sequence[str], environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a program that prints to the log and dies with this process."""
        with self.log.open("ab") as output:
            # A session of its own: Ctrl-C in the terminal reaches the supervisor alone, which passes it on once.
            return subprocess.Popen(
                [sys.executable, "-m", module, *words], env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True, preexec_fn=partial(die_with, os.getpid()),
            )  # fmt: skip

    def end(self) -> None:
        """As it says there; the port is anybody's then."""
        super().end()
        self.port.close()


def environment_of(gpus: Sequence[str], *, workers_on_host: int) -> dict[str, str]:
    """The environment of workers on this machine: their GPUs, their share of the processors, and whom they belong to."""
    environment = dict(os.environ)
    environment[SUPERVISOR] = str(os.getpid())
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    # Ranks on one host share its processors; torchrun would give each one thread, and one rank alone all of them.
    environment.setdefault("OMP_NUM_THREADS", str(max(1, processors() // workers_on_host)))
    # OpenMP threads wait by spinning, for long. On a machine that others use too, those that spin take the time of those that work.
    environment.setdefault("GOMP_SPINCOUNT", OPENMP_SPINS)
    return environment


def reserve_port(host: str = "127.0.0.1") -> socket.socket:
    """A port of this machine that nobody else is given while the socket is open; who knows its number can listen there.

    Args:
        host: an address of the machine; all of them, if empty.
    """
    reserved = socket.socket()
    reserved.bind((host, 0))
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return reserved
