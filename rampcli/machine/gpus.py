"""The GPUs of this machine and their memory, without torch."""

import os
import re
import subprocess
from contextlib import suppress
from functools import cache
from itertools import takewhile
from pathlib import Path

TIMEOUT_S = 10.0
GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"
_NAME = re.compile(r"[0-9]{1,4}|(GPU|MIG)-.+")
_HIDDEN = re.compile(r"-[0-9]+|NoDevFiles")
"""Words that hide the GPUs from there on. Slurm sets the second one for jobs without GPUs."""


def visible_gpus() -> list[str]:
    """Returns the GPUs that a process started here may use, as in CUDA_VISIBLE_DEVICES."""
    chosen = os.environ.get(GPUS_VARIABLE)
    if chosen is None:
        return [str(index) for index in range(gpu_count())]
    return list(takewhile(_NAME.fullmatch, _names_in(chosen)))


def gpu_count() -> int:
    """Returns how many GPUs this machine has. Without the files of Nvidia's driver it is 0."""
    return sum(path.name[6:].isdigit() for path in Path("/dev").glob("nvidia*"))


def misread_gpus(chosen: str, *, count: int) -> str | None:
    """Returns what CUDA uses, and why, if that is not what CUDA_VISIBLE_DEVICES says, or None.

    Args:
        count: how many GPUs this machine has, or 0 if that is unknown.
    """
    names = _names_in(chosen)

    def is_used(name: str) -> bool:
        if _NAME.fullmatch(name) is None:
            return False
        return not (name.isdecimal() and 0 < count <= int(name))

    used = list(takewhile(is_used, names))
    others = names[len(used) :]
    if twice := [name for name in used if used.count(name) > 1]:
        return f"CUDA uses no GPU, because {twice[0]} stands there twice"
    if not others or others == [""] or _HIDDEN.fullmatch(others[0]):
        return None
    uses = f"only GPU {', '.join(used)}" if used else "no GPU"
    return f"CUDA uses {uses}, because {others[0] or 'an empty word'} is no GPU of this machine"


def _names_in(chosen: str) -> list[str]:
    return [name.strip() for name in chosen.split(",")]


def gpu_memory_bytes() -> int | None:
    """Returns the memory of the smallest visible GPU, or None without GPUs or if it is unknown.

    It is unknown for a GPU in MIG mode: nvidia-smi names the memory of all its instances together.
    """
    gpus = ",".join(visible_gpus())
    if "Enabled" in ask_nvidia_smi(gpus, "mig.mode.current"):
        return None
    with suppress(ValueError):  # "[N/A]", or no line
        return min(map(int, ask_nvidia_smi(gpus, "memory.total"))) * 2**20  # it says MiB
    return None


def gpu_names() -> list[str]:
    """Returns the models of the visible GPUs, each once, or an empty list if they are unknown."""
    return sorted({*ask_nvidia_smi(",".join(visible_gpus()), "name")})


@cache
def ask_nvidia_smi(gpus: str, field: str) -> tuple[str, ...]:
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
