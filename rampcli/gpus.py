"""The GPUs of this machine and their memory, without torch."""

import os
import subprocess
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
    """Returns the memory of the smallest visible GPU, or None without GPUs or if it is unknown.

    The answer of nvidia-smi is kept, since it takes up to a second.
    """
    gpus = visible_gpus()
    return _ask_nvidia_smi(",".join(gpus)) if gpus else None


@cache
def _ask_nvidia_smi(gpus: str) -> int | None:
    """Returns the memory of the smallest of some GPUs, or None if nvidia-smi does not say."""
    try:
        answer = subprocess.run(
            [
                "nvidia-smi",
                f"--id={gpus}",
                "--query-gpu=memory.total",
                "--format=csv,noheader,nounits",
            ],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
            stdin=subprocess.DEVNULL,
        ).stdout
        return min(int(line) for line in answer.splitlines()) * MIB
    except (OSError, subprocess.SubprocessError, ValueError):  # ValueError: "[N/A]", or no line
        return None
