"""Processes that were started together, and end together."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rampcli.lifeline import SUPERVISOR, die_with
from rampcli.processors import processors

WORKER = "rampcli.engine.worker"
OPENMP_SPINS = "3000"
MALLOC = {"mmap_threshold": 2**30, "trim_threshold": 2**32, "hugetlb": 1}
"""The largest piece of freed memory, and how much of it in all, that a worker keeps for itself; and that it wants huge pages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """What became of some workers while those who start them go on.

    Attributes:
        begin_anew: the workers begin anew from the last checkpoint, or have to.
        crash: what they crashed of; None where they did not.
        lost: nodes that went, and what the others do; None where none went.
    """

    begin_anew: bool
    crash: str | None = None
    lost: str | None = None


class Workers:
    """The workers of a stage, or those who start them: agents, or a srun. Each leads a session of its own.

    Attributes:
        lost_s: how long the others may take to end once one has failed: they would wait for it in vain.
        stop_signal: what they pass on to the workers, which save and leave then.
    """

    lost_s = 5.0
    stop_signal = signal.SIGTERM

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]], reserved_port: socket.socket | None = None) -> None:
        """Look after processes; at `reserved_port` the workers meet, and it is theirs until the end."""
        self.processes = list(processes)
        self.reserved_port = reserved_port

    def let_train(self) -> None:
        """It is their turn. Here they do not wait for it."""

    def exit_code(self) -> int | None:
        """0 once all have ended well; another code once one has not; None while they run."""
        codes = [process.poll() for process in self.processes]
        failed = [code for code in codes if code]
        if failed:
            return min(failed)  # of a signal, rather than of those who missed the one that it killed
        return None if None in codes else 0

    def change(self) -> Change | None:
        """What has changed since the last call, while there is no exit code. Nothing does here: where one ends, all do."""
        return None

    def bring_back(self, wait_s: float) -> None:
        """Start what was lost again, `wait_s` seconds from now."""

    def ask_to_stop(self) -> None:
        """Let the workers save and leave."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(self.stop_signal)

    def kill(self) -> None:
        """End them at once."""
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def end(self) -> None:
        """Make sure that nothing is left, however the stage ended."""
        self.ask_to_stop()
        deadline = time.monotonic() + self.lost_s
        with suppress(subprocess.TimeoutExpired):
            for process in self.processes:
                process.wait(max(0.0, deadline - time.monotonic()))
        self.kill()
        if self.reserved_port is not None:
            self.reserved_port.close()


def start_process(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None, *, listens: bool = False
) -> subprocess.Popen[bytes]:
    """Start a program that prints to a log, dies with this process, and leads a session of its own; one that `listens` has an input.

    So Ctrl-C in the terminal reaches the supervisor alone, which passes it on once.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE if listens else subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True, preexec_fn=partial(die_with, os.getpid()),
        )  # fmt: skip


def worker_environment(*, threads: int) -> dict[str, str]:
    """The environment of workers: whom they belong to, and, unless the user has said so, how many threads each has, and what suits them."""
    environment = {**os.environ, SUPERVISOR: str(os.getpid())}
    environment.setdefault("OMP_NUM_THREADS", str(threads))
    # OpenMP threads wait by spinning, for long. On a machine that others use too, those that spin take the time of those that work.
    environment.setdefault("GOMP_SPINCOUNT", OPENMP_SPINS)
    # Every step frees large tensors and wants them again; what goes back to the operating system comes anew as empty pages. And tensors
    # span many pages, for which those of 2 MB take fewer entries of the processor's tables.
    environment.setdefault("GLIBC_TUNABLES", ":".join(f"glibc.malloc.{name}={value}" for name, value in MALLOC.items()))
    if "TORCHINDUCTOR_CACHE_DIR" not in environment and (cache := _cache_folder()) is not None:
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    return environment


def _cache_folder() -> Path | None:
    """Where compiled layers are kept for the processes of later stages, and for later runs; None leaves that to torch.

    It is not in the run directory, since torch runs what it finds there.
    """
    with suppress(OSError, RuntimeError):  # no home, or none to write to, as in containers
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rampcli" / "compiled"
        cache.mkdir(parents=True, exist_ok=True)
        return cache if os.access(cache, os.W_OK) else None
    return None


def node_environment(node: int, *, num_nodes: int, devices: int, gpus: Sequence[str]) -> dict[str, str]:
    """That of the workers of a node, which counts from 0, where this host plays all nodes: its GPUs, and its share of the processors."""
    # torchrun would give each rank one thread, and one rank alone all of them.
    environment = worker_environment(threads=max(1, processors() // (num_nodes * devices)))
    return environment | {"CUDA_VISIBLE_DEVICES": ",".join(gpus[node * devices : (node + 1) * devices])}


def reserve_port(host: str = "127.0.0.1") -> socket.socket:
    """A port of this machine that nobody else is given while the socket is open; who knows its number can listen there.

    Args:
        host: an address of the machine; all of them, if empty.
    """
    reserved = socket.socket()
    reserved.bind((host, 0))
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return reserved
