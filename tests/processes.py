"""The processes of this machine, as tests look at them and wait for them."""

import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def children_of(parent: int) -> list[int]:
    """The processes that a process has started, in that order."""
    children = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended since
            facts = status.read_text().rpartition(")")[2].split()
            if int(facts[1]) == parent:
                children.append((int(facts[19]), int(status.parent.name)))  # numbers begin anew once they are used up
    return [process for _, process in sorted(children)]


def commands_with(words: str) -> list[str]:
    """The command lines that have these words."""
    commands = [command_of(int(path.name)) for path in Path("/proc").glob("[0-9]*")]
    return [command for command in commands if words in command]


def command_of(process: int) -> str:
    """The command line of a process; empty where it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def wait_until(
    is_so: Callable[[], object],
    process: subprocess.Popen[str] | None = None,
    *,
    deadline_s: float = 150.0,
    said: Callable[[], object] = lambda: commands_with("rampcli"),
) -> None:
    """Wait for something that a process does.

    Raises:
        AssertionError: it has ended before; or nothing has come of it in time, and `said` tells what did.
    """
    until = time.monotonic() + deadline_s
    while not is_so():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < until, said()
        time.sleep(0.02)


def wait_until_all_have_ended(run_dir: Path) -> None:
    wait_until(lambda: not commands_with(str(run_dir)), deadline_s=20, said=lambda: commands_with(str(run_dir)))
