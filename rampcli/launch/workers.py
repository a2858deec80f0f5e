"""Processes that were started together, and end together."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from rampcli.interpreter import safe_environment
from rampcli.lifeline import SUPERVISOR, die_with, signal_name
from rampcli.network import LOOPBACK
from rampcli.own_folder import private_folder
from rampcli.run_directory import RunDirectory

WORKER = "rampcli.worker"
OPENMP_SPINS = "3000"
MALLOC = {"mmap_threshold": 2**30, "trim_threshold": 2**32, "hugetlb": 1}
"""The largest piece of freed memory, and how much of it in all, that a worker keeps for itself; and that it wants huge pages."""


class Workers:
    """The workers of a stage, in the order of their ranks, or a srun that starts them. Each leads a session of its own.

    Attributes:
        lost_s: how long the others may take to end once one has failed: they would wait for it in vain.
        stop_signal: what they pass on to the workers, which save and leave then.
    """

    lost_s = 5.0
    stop_signal = signal.SIGTERM

    def __init__(
        self,
        processes: Sequence[subprocess.Popen[bytes]],
        meeting_socket: socket.socket | None = None,
    ) -> None:
        """Look after processes. The workers meet at the port of `meeting_socket`, which stays open until they have ended."""
        self.processes = list(processes)
        self.meeting_socket = meeting_socket

    def let_train(self) -> None:
        """It is their turn. Here they do not wait for it."""

    def exit_code(self) -> int | None:
        """0 once all have ended well; another code once one has not; None while they run."""
        codes = [process.poll() for process in self.processes]
        failed = [code for code in codes if code]
        if failed:
            return min(
                failed
            )  # of a signal, rather than of those who missed the one that it killed
        return None if None in codes else 0

    def killed(self) -> dict[int, str]:
        """Returns the ranks that a signal has ended so far, and the signal's name."""
        codes = {rank: process.poll() for rank, process in enumerate(self.processes)}
        return {
            rank: signal_name(-code)
            for rank, code in codes.items()
            if code is not None and code < 0
        }

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
        if self.meeting_socket is not None:
            self.meeting_socket.close()


def start_process(
    command: Sequence[str],
    run: RunDirectory,
    log: Path,
    environment: Mapping[str, str],
    *,
    has_input: bool = False,
    descriptors: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a program that prints to a log of a run, dies with this process, and leads a session of its own.

    So Ctrl-C in the terminal reaches the supervisor alone, which passes it on once.

    Args:
        command: the program and its arguments.
        run: whose log it is.
        log: file in the run's folder of logs.
        environment: of the program.
        has_input: whether the program has a pipe as its input.
        descriptors: open files that the program has, too, under the same numbers.

    Raises:
        UsageError: the log, or the folder of the logs, is a symbolic link.
    """
    run.make_folder(run.logs)
    with run.open_to_append(log) as output:
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE if has_input else subprocess.DEVNULL, stdout=output, stderr=output,
            pass_fds=descriptors, start_new_session=True, preexec_fn=partial(die_with, os.getpid()),
        )  # fmt: skip


def worker_environment(*, threads: int) -> dict[str, str]:
    """The environment of workers: whom they belong to, and, unless the user has said so, how many threads each has, and what suits them."""
    environment = {**safe_environment(), SUPERVISOR: str(os.getpid())}
    environment.setdefault("OMP_NUM_THREADS", str(threads))
    # OpenMP threads wait by spinning, for long. On a machine that others use too, those that spin take the time of those that work.
    environment.setdefault("GOMP_SPINCOUNT", OPENMP_SPINS)
    # Every step frees large tensors and wants them again; what goes back to the operating system comes anew as empty pages. And tensors
    # span many pages, for which those of 2 MB take fewer entries of the processor's tables.
    environment.setdefault(
        "GLIBC_TUNABLES", ":".join(f"glibc.malloc.{name}={value}" for name, value in MALLOC.items())
    )
    if "TORCHINDUCTOR_CACHE_DIR" not in environment and (cache := _cache_folder()) is not None:
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    return environment


def _cache_folder() -> Path | None:
    """Returns where compiled layers are kept for the processes of later stages, and for later runs, or None if nothing can be written.

    Torch runs what it finds there. So it is not in the run directory, nor in torch's own `/tmp/torchinductor_NAME`, which anybody may
    have made.
    """
    with suppress(OSError, RuntimeError):  # no home, or none to write to, as in containers
        cache = (
            Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
            / "rampcli"
            / "compiled"
        )
        cache.mkdir(parents=True, exist_ok=True)
        if os.access(cache, os.W_OK):
            return cache
    with suppress(OSError):
        return private_folder("compiled")
    return None


def reserve_port(address: str = LOOPBACK) -> socket.socket:
    """A port of this machine that nobody else is given while the socket is open; who knows its number can listen there.

    Args:
        address: one of the machine's.
    """
    reserved = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    reserved.bind((address, 0))
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return reserved
