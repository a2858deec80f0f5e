"""Memory of this rank: the most that it has used, and errors that mean that it ran out."""

from pathlib import Path

import torch

ALLOCATION_FAILED = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "Storage size calculation overflowed",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
"""Fragments of the RuntimeErrors that torch raises if it cannot allocate memory."""


def peak_bytes(device: torch.device) -> int:
    """Returns the most memory that this process has held so far.

    On a GPU, this is what torch has reserved there; on the CPU, the resident memory of the process.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    return _status_bytes("VmHWM")


def _status_bytes(field: str) -> int:
    """Returns a field of /proc/self/status that the kernel gives in kB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return 1024 * int(value.split()[0])
    raise ValueError(f"/proc/self/status has no {field}")


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error, or an error that it follows from, is a failed allocation."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError | torch.OutOfMemoryError):
            return True
        if isinstance(cause, RuntimeError) and any(
            fragment in str(cause) for fragment in ALLOCATION_FAILED
        ):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
