"""The GPUs of this machine and their memory, without torch."""

import os
import subprocess
from contextlib import suppress
from functools import cache
from itertools import takewhile
from pathlib import Path

TIMEOUT_S = 10.0
MIB = 2**20


def visible_gpus() -> list[str]:
    """Returns the GPUs that a process started here may use, as in CUDA_VISIBLE_DEVICES."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        names = [name.strip() for name in chosen.split(",")]
        # As in CUDA, an index such as -1 hides the GPUs from there on.
        return list(takewhile(lambda name: name and not name.startswith("-"), names))
    return [
        str(index)
        for index in range(sum(path.name[6:].isdigit() for path in Path("/dev").glob("nvidia*")))
    ]


def gpu_memory_bytes() -> int | None:
    """Returns the memory of the smallest visible GPU, or None without GPUs or if it is unknown."""
    with suppress(ValueError):  # "[N/A]", or no line
        return min(map(int, _ask_nvidia_smi(",".join(visible_gpus()), "memory.total"))) * MIB
    return None


def gpu_names() -> list[str]:
    """Returns the models of the visible GPUs, each once, or an empty list if they are unknown."""
    return sorted({*_ask_nvidia_smi(",".join(visible_gpus()), "name")})


@cache
def _ask_nvidia_smi(gpus: str, field: str) -> tuple[str, ...]:
    """Returns a field of some GPUs, line by line; no lines if nvidia-smi does not answer.

    The answer is kept, since it takes up to a second.
    """
    if not gpus:
        return ()
    command = [
        "nvidia-smi",
        f"--id={gpus}",
        f"--query-gpu={field}",
        "--format=csv,noheader,nounits",
    ]
    try:
        answer = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
            stdin=subprocess.DEVNULL,
        ).stdout
    except (OSError, subprocess.SubprocessError, ValueError):  # ValueError: not UTF-8
        return ()
    return tuple(line.strip() for line in answer.splitlines())
