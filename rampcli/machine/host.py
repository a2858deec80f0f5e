"""This host: its processors and its memory, as the kernel tells them. Needs no torch."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
SYSTEM = Path("/sys")


def processors() -> int:
    """Returns how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_name() -> str | None:
    """Returns the model name in /proc/cpuinfo, or None if it has none."""
    with suppress(OSError):
        for line in CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines():
            field, _, value = line.partition(":")
            if field.strip() == "model name":
                return value.strip()
    return None


def has_bf16_products() -> bool:
    """Returns whether /proc/cpuinfo lists instructions of x86 that multiply numbers in bf16."""
    with suppress(OSError):
        words = set(CPUINFO.read_text(encoding="utf-8", errors="replace").split())
        return not words.isdisjoint({"avx512_bf16", "amx_bf16"})
    return False


def processors_near(pci_address: str) -> set[int]:
    """Returns the processors on the NUMA node of a PCI device, such as `0000:1b:00.0`, by number.

    The set is empty if the kernel does not say. For machines with one node, it often does not.
    """
    near: set[int] = set()
    with suppress(OSError, ValueError):
        node = (SYSTEM / "bus/pci/devices" / pci_address / "numa_node").read_text().strip()
        ranges = (SYSTEM / f"devices/system/node/node{node}/cpulist").read_text().split(",")
        for first, _, last in (text.strip().partition("-") for text in ranges):
            near.update(range(int(first), int(last or first) + 1))
    return near


HOST = Path("/proc/meminfo")
COUNTERS = Path("/proc/vmstat")
PROCESS = Path("/proc/self/status")
GROUPS_OF_PROCESS = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")


def available_bytes() -> int | None:
    """Returns how much memory of this host processes could still take, or None outside Linux."""
    return _figure(HOST, "MemAvailable")


def peak_resident_bytes() -> int | None:
    """Returns the most resident memory that this process has had, or None outside Linux."""
    return _figure(PROCESS, "VmHWM")


def swapped_bytes() -> int:
    """Returns how much memory of this process is swapped out. It is 0 outside Linux."""
    return _figure(PROCESS, "VmSwap") or 0


def count_oom_kills() -> int:
    """Returns how many processes the kernel has killed for lack of memory.

    The processes are those of this process's control group, so that other containers and jobs of
    the host do not count. Without such a group, they are those of this host. The count is 0 outside
    Linux, and never rises there.
    """
    counts = (_figure(path, "oom_kill") for path in (*_group_counters(), COUNTERS))
    return next((count for count in counts if count is not None), 0)


def _group_counters() -> Iterator[Path]:
    """Yields files in which the kernel may count the kills in the control group of this process."""
    with suppress(OSError):
        for line in GROUPS_OF_PROCESS.read_text(encoding="utf-8", errors="replace").splitlines():
            _, controllers, group = line.split(":", 2)
            if "memory" in controllers.split(","):  # version 1
                yield CGROUPS / "memory" / group.lstrip("/") / "memory.oom_control"
            elif controllers == "":
                yield CGROUPS / group.lstrip("/") / "memory.events"


def _figure(path: Path, name: str) -> int | None:
    """Returns the number that follows a name in a file of the kernel, or None if it is missing.

    A number of kB, which are 1024 bytes there, is returned in bytes.
    """
    with suppress(OSError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            found, *words = line.split() or [""]
            if found.rstrip(":") == name:
                return int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return None
