"""Memory of this rank: its peak, and failed allocations."""

import torch

from rampcli.machine.host import peak_resident_bytes

ALLOCATION_FAILED = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "Storage size calculation overflowed",
    "_ALLOC_FAILED",  # cuBLAS, cuSOLVER and cuDNN 8
    "_ALLOCATION_FAILED",  # cuDNN 9
    "Failed to CUDA",  # NCCL
    "Failed to malloc",  # NCCL
)
"""Fragments of the RuntimeErrors that torch raises if it cannot allocate memory.

Libraries besides torch allocate on a GPU too, and torch passes their words on.
"""


def peak_bytes(device: torch.device) -> int | None:
    """Returns the most memory that this process has held so far, or None if it is unknown.

    On a GPU, this is what torch has reserved there; on the CPU, the resident memory of the process.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    return peak_resident_bytes()


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
