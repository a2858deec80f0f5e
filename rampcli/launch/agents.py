"""One elastic agent (torchrun) per node, all on this host; their workers die with them."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rampcli.lifeline import die_with_parent
from rampcli.processors import processors

WORKER = "rampcli.engine.worker"
KILL_AFTER_S = 40.0
OPENMP_SPINS = "3000"


class Agents:
    """The processes of one stage."""

    def __init__(self, run_dir: Path, log: Path, *, num_nodes: int, devices: int, gpus: Sequence[str]) -> None:
        """Start `num_nodes` agents of `devices` workers each; what they print goes to `log`."""
        log.parent.mkdir(parents=True, exist_ok=True)
        port = _free_port()
        self._processes = []
        with log.open("ab") as output:
            for node in range(num_nodes):
                command = [
                    sys.executable,
                    *("-m", "torch.distributed.run"),
                    f"--nnodes={num_nodes}",
                    f"--nproc-per-node={devices}",
                    f"--node-rank={node}",
                    "--master-addr=127.0.0.1",
                    f"--master-port={port}",
                    *("-m", WORKER, str(run_dir)),
                ]
                environment = _environment(gpus[node * devices : (node + 1) * devices], workers_on_host=num_nodes * devices)
                # A session of its own: Ctrl-C in the terminal reaches the supervisor alone, which passes it on once.
                self._processes.append(
                    subprocess.Popen(
                        command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                        start_new_session=True, preexec_fn=die_with_parent,
                    )
                )  # fmt: skip

    def exit_code(self) -> int | None:
        """0 once all have ended well; the first other code once one has not; None while they run."""
        codes = [process.poll() for process in self._processes]
        failed = [code for code in codes if code not in (None, 0)]
        if failed:
            return failed[0]
        return None if None in codes else 0

    def ask_to_stop(self) -> None:
        """Let the workers save and leave: an agent passes the signal on."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()

    def end(self) -> None:
        """Make sure that nothing is left, however the stage ended."""
        self.ask_to_stop()
        deadline = time.monotonic() + KILL_AFTER_S
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _environment(gpus: Sequence[str], *, workers_on_host: int) -> dict[str, str]:
    environment = dict(os.environ)
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    # Ranks on one host share its processors; torchrun would give each one thread, and one rank alone all of them.
    environment.setdefault("OMP_NUM_THREADS", str(max(1, processors() // workers_on_host)))
    # OpenMP threads wait by spinning, for long. On a machine that others use too, those that spin take the time of those that work.
    environment.setdefault("GOMP_SPINCOUNT", OPENMP_SPINS)
    return environment


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
