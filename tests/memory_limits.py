"""Limits on the memory of the processes of a test."""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup/memory")


def limit_addresses(most_bytes: int) -> Callable[[], None]:
    """Returns a function that limits this process: allocations beyond the limit fail."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))

    return limit


@contextmanager
def memory_group(most_bytes: int) -> Iterator[Callable[[], None]]:
    """Gives a function that puts this process into a control group with this much memory.

    The kernel kills a process of the group when they need more together. Only for root.
    """
    group = GROUPS / f"rampcli-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(most_bytes))
        yield lambda: _join(group)
    finally:
        group.rmdir()


def _join(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))
