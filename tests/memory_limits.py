"""Limits on the memory of the processes of a test. Groups and swap space are only for root."""

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup/memory")


MORE_BYTES = 7 * 2**28
"""Addresses that a process may use besides those that torch maps.

Threads of a rank that trains a tiny model take 700 MB of addresses, and 1.4 GB in a build of torch
with CUDA, which starts more of them.
"""


def limit_addresses() -> None:
    """Limits the addresses of this process and its children: larger allocations fail.

    They may use `MORE_BYTES` besides those of this process, which depend on the build of torch.
    """
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most_bytes = pages * resource.getpagesize() + MORE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))


@contextmanager
def memory_group(most_bytes: int) -> Iterator[Path]:
    """Gives a control group, whose processes together have this much memory.

    If they need more, the kernel kills one of them, or swaps if it can.
    """
    group = GROUPS / f"rampcli-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(most_bytes))
        yield group
    finally:
        group.rmdir()


def join_group(group: Path) -> None:
    """Puts this process, and the children that it will have, into a group."""
    (group / "cgroup.procs").write_text(str(os.getpid()))


@contextmanager
def swap_space(path: Path, size: int) -> Iterator[None]:
    """Lets the kernel swap to a file."""
    path.touch(mode=0o600)
    subprocess.run(["fallocate", "-l", str(size), path], check=True)
    subprocess.run(["mkswap", path], check=True, capture_output=True)
    subprocess.run(["swapon", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["swapoff", path], check=True)
