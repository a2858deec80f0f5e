"""The usable processors: number, name, bf16 products, and those that are near a device."""

import os
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
    """Returns the numbers of the processors on the NUMA node of a PCI device.

    The set is empty if the kernel does not say. For machines with one node, it often does not.

    Args:
        pci_address: such as `0000:1b:00.0`.
    """
    near: set[int] = set()
    with suppress(OSError, ValueError):
        node = (SYSTEM / "bus/pci/devices" / pci_address / "numa_node").read_text().strip()
        ranges = (SYSTEM / f"devices/system/node/node{node}/cpulist").read_text().split(",")
        for first, _, last in (text.strip().partition("-") for text in ranges):
            near.update(range(int(first), int(last or first) + 1))
    return near
