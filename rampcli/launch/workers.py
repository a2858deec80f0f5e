"""Groups of processes that start together and end together."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from rampcli.launch.environment import without_outer_launcher
from rampcli.machine.interpreter import safe_environment
from rampcli.machine.lifeline import SUPERVISOR, die_with, signal_name
from rampcli.machine.network import LOOPBACK
from rampcli.runs.directory import RunDirectory
from rampcli.runs.worker_defaults import AT_START
from rampcli.settings.config import Config
from rampcli.settings.rl import is_rl

WORKER = "rampcli.worker"
RL_WORKER = "rampcli.rl.rank"
"""Programs of a rank, in pretraining and in reinforcement learning."""
NO_MEMORY = "lack of memory"
"""What killed a rank, in place of a signal's name, if its starter says that memory ran out."""


class Workers:
    """The workers of a stage in rank order, or one srun process that starts them.

    Each process leads its own session.

    Attributes:
        exit_timeout_s: seconds that the other workers get to exit after one has failed.
        stop_signal: signal that makes the workers save and exit.
    """

    exit_timeout_s = 5.0
    stop_signal = signal.SIGTERM

    def __init__(
        self,
        processes: Sequence[subprocess.Popen[bytes]],
        rendezvous_socket: socket.socket | None = None,
    ) -> None:
        """Takes charge of processes.

        Args:
            rendezvous_socket: socket on the port of the workers' rendezvous. `end` closes it.
        """
        self.processes = list(processes)
        self.rendezvous_socket = rendezvous_socket

    def begin_training(self) -> None:
        """Tells workers that wait to train. Workers of this class do not wait."""

    def exit_code(self) -> int | None:
        """Returns the code of a process that failed, 0 if all succeeded, or None while some run."""
        codes = [process.poll() for process in self.processes]
        failed = [code for code in codes if code]
        if failed:
            # Negative codes are signals. A killed rank is the cause; the others fail because of it.
            return min(failed)
        return None if None in codes else 0

    def killed(self) -> dict[int, str]:
        """Returns the ranks that were killed so far, with the signal's name or `NO_MEMORY`."""
        codes = {rank: process.poll() for rank, process in enumerate(self.processes)}
        return {
            rank: signal_name(-code)
            for rank, code in codes.items()
            if code is not None and code < 0
        }

    def ask_to_stop(self) -> None:
        """Asks the workers to save and exit."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(self.stop_signal)

    def kill(self) -> None:
        """Kills the processes, and everything else in their process groups."""
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def end(self) -> None:
        """Ends processes that still run: asks, waits `exit_timeout_s`, then kills."""
        self.ask_to_stop()
        deadline = time.monotonic() + self.exit_timeout_s
        with suppress(subprocess.TimeoutExpired):
            for process in self.processes:
                process.wait(max(0.0, deadline - time.monotonic()))
        self.kill()
        if self.rendezvous_socket is not None:
            self.rendezvous_socket.close()


def worker_program(config: Config) -> str:
    """Returns the program of the ranks that train a configuration."""
    return RL_WORKER if is_rl(config) else WORKER


def start_process(
    command: Sequence[str],
    run: RunDirectory,
    log: Path,
    environment: Mapping[str, str],
    *,
    has_input: bool = False,
    descriptors: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Starts a program that prints to a log of a run and dies with this process.

    The program leads its own session. So Ctrl-C in the terminal reaches only the supervisor,
    which passes it on once.

    Args:
        log: file in the run's log folder.
        has_input: connect standard input to a pipe.
        descriptors: open files that the program inherits under the same numbers.

    Raises:
        UsageError: the log or the log folder is a symbolic link.
    """
    run.make_folder(run.logs)
    with run.open_to_append(log) as output:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE if has_input else subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=descriptors,
            start_new_session=True,
            preexec_fn=partial(die_with, os.getpid()),
        )


def worker_environment(*, threads: int) -> dict[str, str]:
    """Returns the environment of workers. Variables that the user has set keep their values.

    Args:
        threads: OpenMP threads per worker.
    """
    environment = without_outer_launcher(safe_environment()) | {SUPERVISOR: str(os.getpid())}
    environment.setdefault("OMP_NUM_THREADS", str(threads))
    for name, value in AT_START.items():
        environment.setdefault(name, value)
    return environment


def reserve_port(address: str = LOOPBACK) -> socket.socket:
    """Binds a free port of this machine, and returns the socket.

    While the socket is open, the kernel gives the port to nobody else, but a process that knows
    its number can listen on it.

    Args:
        address: one of this machine's addresses.
    """
    reserved = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    reserved.bind((address, 0))
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return reserved
