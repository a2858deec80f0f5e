"""Groups of processes that start and end together: their log, and why they ended."""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rampcli.errors import printable
from rampcli.files.guarded_folder import open_to_read
from rampcli.launch.environment import without_outer_launcher
from rampcli.machine.interpreter import safe_environment
from rampcli.machine.lifeline import SUPERVISOR, die_with, signal_name
from rampcli.machine.network import LOOPBACK
from rampcli.runs.directory import RunDirectory
from rampcli.runs.worker_defaults import AT_START
from rampcli.settings.config import Config
from rampcli.settings.launch import LaunchConfig
from rampcli.settings.rl import is_rl

POLL_S = 0.05
"""Seconds between two looks at processes, of whoever waits for them to end."""
MOST_LOG_BYTES = 2**16
"""Only this many bytes at the end of a log are read."""

_TIMEOUT = re.compile(
    r"(?:Watchdog caught collective operation timeout: .*\bTimeout\(ms\)="
    r"|(?:Timed out waiting |wait timeout after |client socket has timed out after )(?=\d+ms))(\d+)"
)
"""What NCCL, gloo and the store print if a rank has waited too long for others: milliseconds."""
WORKER = "rampcli.worker"
RL_WORKER = "rampcli.rl.rank"
"""Programs of a rank, in pretraining and in reinforcement learning."""
NO_MEMORY = "lack of memory"
"""What killed a rank, in place of a signal's name, if its starter says that memory ran out."""
SELF_ABORTED = "SIGABRT"


class WorkerLog:
    """The part of a log that is written after this object is created; all of it if `from_start`."""

    def __init__(self, path: Path, *, from_start: bool = False) -> None:
        self.path = path
        self._start = path.stat().st_size if path.exists() and not from_start else 0

    def lines(self) -> list[str]:
        """Returns the last non-empty lines, or none if the log was deleted or became a link."""
        try:
            file = open_to_read(self.path, follows_links=False)
        except OSError:
            return []
        with file:
            file.seek(max(self._start, file.seek(0, os.SEEK_END) - MOST_LOG_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
        return [*filter(None, map(str.strip, lines))]

    def timeout_s(self) -> float | None:
        """Returns after how many seconds a rank stopped waiting for others, or None."""
        found = next(filter(None, map(_TIMEOUT.search, self.lines())), None)
        return None if found is None else int(found[1]) / 1000

    def describe(self, *, quote: bool = True) -> str:
        """Returns "log: PATH", followed by the last line of the log if `quote` is set."""
        last = self.lines()[-1:] if quote else []
        return f"log: {self.path}{''.join(f', which ends: {printable(line)}' for line in last)}"


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
        """Takes charge of processes, and of a socket on the port of their rendezvous."""
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
        codes = [process.poll() or 0 for process in self.processes]
        return {rank: signal_name(-code) for rank, code in enumerate(codes) if code < 0}

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
    """Returns the environment of workers with a number of OpenMP threads each.

    Variables that the user has set keep their values.
    """
    environment = without_outer_launcher(safe_environment()) | {SUPERVISOR: str(os.getpid())}
    environment.setdefault("OMP_NUM_THREADS", str(threads))
    for name, value in AT_START.items():
        environment.setdefault(name, value)
    return environment


def reserve_port(address: str = LOOPBACK) -> socket.socket:
    """Binds a free port at an address of this machine, and returns the socket.

    While the socket is open, the kernel gives the port to nobody else, but a process that knows
    its number can listen on it.
    """
    reserved = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    reserved.bind((address, 0))
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return reserved


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkersExit:
    """How workers ended.

    Attributes:
        exit_code: 0, or the exit code of a worker that failed.
        killed: ranks that were killed, as `Workers.killed` returns them. Ranks that were still
            running when another one had failed are not included, nor those that the supervisor
            killed.
        oom_kills: processes that the kernel killed meanwhile for lack of memory, as
            `count_oom_kills` counts them.
        log: their output.
        late: ranks that others waited for, and what they did, if that is known.
        had_not_saved: a rank was killed before the others saved and stopped. They may do so while
            they are ended.
    """

    exit_code: int
    killed: dict[int, str]
    oom_kills: int
    log: WorkerLog
    late: str = ""
    had_not_saved: bool = False

    @property
    def killed_from_outside(self) -> dict[int, str]:
        """The ranks of `killed` that did not abort themselves.

        NCCL aborts a rank that has waited too long for another one, or when another one fails.
        """
        return {rank: name for rank, name in self.killed.items() if name != SELF_ABORTED}

    def ranks_out_of_memory(self) -> list[int]:
        """Returns the ranks that were killed because memory ran out."""
        signs = {NO_MEMORY} | ({"SIGKILL"} if self.oom_kills else set())
        return [rank for rank, name in self.killed.items() if name in signs]

    def cause(self, state: dict[str, Any], launch: LaunchConfig) -> str:
        """Returns why the workers failed, as state.json and their log say, and where the log is."""
        recorded = state["error"]["message"] if state["status"] == "failed" else None
        # If a rank was killed, the errors of the others only report that it is missing. A rank that
        # aborts itself may be the first to fail, or do so because another one has failed.
        if (waited_s := self.log.timeout_s()) is not None:
            limit = _limit_of(waited_s, launch)
            allowed = f", as {limit} allows" if limit else ""
            cause = f"ranks waited {waited_s:g} s for others{allowed}{self.late}"
        else:
            cause = _describe_killed(self.killed_from_outside) or "; ".join(
                filter(None, (_describe_killed(self.killed), recorded))
            )
        cause = cause or f"exit code {self.exit_code}"
        return f"{cause}; {self.log.describe(quote=recorded is None)}"

    def remedy(self, launch: LaunchConfig) -> str:
        """Returns what a user can do about the cause."""
        if (waited_s := self.log.timeout_s()) is None:
            return "fix the error in the log"
        limit = _limit_of(waited_s, launch)
        return "find out why a rank was late" + (f", or a larger {limit}" if limit else "")


def _limit_of(waited_s: float, launch: LaunchConfig) -> str:
    """Returns the settings with this limit on how long ranks wait, or "" if there are none."""
    limits = {
        LaunchConfig.start_timeout_s: launch.start_timeout_s,
        LaunchConfig.step_timeout_s: launch.step_timeout_s,
    }
    return " or ".join(key for key, limit_s in limits.items() if limit_s == waited_s)


def _describe_killed(ranks: Mapping[int, str]) -> str:
    return " and ".join(f"rank {rank} was killed by {name}" for rank, name in ranks.items())
