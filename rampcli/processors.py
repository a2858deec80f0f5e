"""The usable processors: their number and their name."""

import os
from contextlib import suppress
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


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
