"""Finds the processes of this machine, and waits for them."""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
LISTENS = "0A"
PATIENCE_S = 300.0
"""How long tests wait for something that takes seconds on an idle machine."""
DEADLINE_S = 2 * PATIENCE_S
"""How long a command may run, and a rank stand still, before it is ended.

Longer than `PATIENCE_S`, so that a test that waits in vain fails first and says for what.
"""
LOOK_EVERY_S = 0.05


def children_of(parent: int) -> list[int]:
    """Returns the children of a process in the order of their starts."""
    children = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            facts = status.read_text().rpartition(")")[2].split()
            if int(facts[1]) == parent:
                # By time of start: process numbers are used again.
                children.append((int(facts[19]), int(status.parent.name)))
    return [process for _, process in sorted(children)]


def processes_with(words: str) -> list[int]:
    """Returns the processes whose command lines contain these words."""
    return [
        process
        for path in Path("/proc").glob("[0-9]*")
        if words in command_of(process := int(path.name))
    ]


def commands_with(words: str) -> list[str]:
    """Returns the command lines that contain these words."""
    return [command for command in map(command_of, processes_with(words)) if command]


def command_of(process: int) -> str:
    """Returns the command line of a process, or "" if it has ended."""
    with suppress(OSError):
        return (
            Path(f"/proc/{process}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")
        )
    return ""


def environment_of(process: int) -> dict[str, str]:
    """Returns the environment that a process was started with, empty if it has ended."""
    with suppress(OSError):
        return dict(
            line.split("=", 1)
            for line in Path(f"/proc/{process}/environ").read_text().split("\0")
            if "=" in line
        )
    return {}


@contextmanager
def paused(processes: Iterable[int]) -> Iterator[None]:
    """Stops processes for the duration of a block."""
    stopped = list(processes)
    send(signal.SIGSTOP, stopped)
    try:
        # On a busy machine, a process may run on, and would handle a later signal of a lower number
        # first.
        wait_until(lambda: all(map(is_stopped, stopped)))
        yield
    finally:
        send(signal.SIGCONT, stopped)


def send(number: int, processes: Iterable[int]) -> None:
    """Sends a signal to processes."""
    for process in processes:
        os.kill(process, number)


def kill_with_children(process: "subprocess.Popen[Any]") -> None:
    """Kills a process and its children, unless the process has ended."""
    if process.poll() is None:
        for each in [process.pid, *children_of(process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)


@contextmanager
def killed_at_the_end(process: "subprocess.Popen[Any]") -> Iterator["subprocess.Popen[Any]"]:
    """Kills a process and its children at the end of a block, also if the block fails."""
    with process:
        try:
            yield process
        finally:
            kill_with_children(process)


def is_stopped(process: int) -> bool:
    """Returns whether all threads of a running process are stopped."""
    threads = Path(f"/proc/{process}/task").glob("*/stat")
    return all(thread.read_text().rpartition(") ")[2].startswith("T") for thread in threads)


def is_pending(number: int, process: int) -> bool:
    """Returns whether a signal was sent to a running process that has not received it yet."""
    status = Path(f"/proc/{process}/status").read_text()
    pending = re.findall(r"^\w*Pnd:\s(\w+)$", status, re.MULTILINE)
    return any(int(mask, 16) >> (number - 1) & 1 for mask in pending)


def wait_until(
    is_so: Callable[[], T],
    process: subprocess.Popen[str] | None = None,
    *,
    deadline_s: float = PATIENCE_S,
    every_s: float = LOOK_EVERY_S,
    evidence: Callable[[], object] = lambda: commands_with("rampcli"),
) -> T:
    """Waits until a condition holds, and returns its first true value.

    Args:
        is_so: the condition.
        process: has to run until then.
        deadline_s: how long to wait.
        every_s: how long to wait before looking again.
        evidence: what to show if the condition never holds.

    Raises:
        AssertionError: the process ended, or the time is up.
    """
    until = time.monotonic() + deadline_s
    while not (found := is_so()):
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < until, evidence()
        time.sleep(every_s)
    return found


def processes_of(folder: Path) -> list[int]:
    """Returns the processes with a folder in their command lines, or with a file of it open.

    A worker has its log and its lock open. A forked one has the command line of its parent.
    """
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        process = int(path.name)
        if str(folder) in command_of(process) or _has_open(process, folder):
            found.append(process)
    return found


def _has_open(process: int, folder: Path) -> bool:
    for descriptor in Path(f"/proc/{process}/fd").glob("*"):
        with suppress(OSError):  # closed meanwhile
            if os.readlink(descriptor).startswith(f"{folder}/"):
                return True
    return False


def wait_until_all_have_ended(run_dir: Path) -> None:
    """Waits for the end of the processes that work on a run.

    Raises:
        AssertionError: some still run after `PATIENCE_S`.
    """
    wait_until(lambda: not processes_of(run_dir), evidence=lambda: processes_of(run_dir))


def listening_addresses(processes: Iterable[int]) -> set[str]:
    """Returns the addresses at which processes listen for TCP connections."""
    sockets = set()
    for process in processes:
        for descriptor in Path(f"/proc/{process}/fd").glob("*"):
            with suppress(OSError):  # it has been closed
                sockets.add(os.readlink(descriptor))
    found = set()
    for family, table in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == LISTENS and f"socket:[{inode}]" in sockets:
                # Words of four bytes, the last byte of each first.
                words = bytes.fromhex(local.partition(":")[0])
                found.add(
                    socket.inet_ntop(
                        family, b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
                    )
                )
    return found
