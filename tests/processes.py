"""The processes of this machine, as tests look at them."""

import time
from contextlib import suppress
from pathlib import Path


def children_of(parent: int) -> list[int]:
    """The processes that a process has started."""
    children = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended since
            if int(status.read_text().rpartition(")")[2].split()[1]) == parent:
                children.append(int(status.parent.name))
    return children


def commands_with(words: str) -> list[str]:
    """The command lines that have these words."""
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            commands.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [command for command in commands if words in command]


def wait_until_all_have_ended(run_dir: Path, deadline_s: float = 20.0) -> None:
    until = time.monotonic() + deadline_s
    while left := commands_with(str(run_dir)):
        assert time.monotonic() < until, f"still running: {left}"
        time.sleep(0.05)
