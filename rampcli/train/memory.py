"""Memory of this rank: its peak, signs that it is short, and failed allocations."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from rampcli.host_memory import peak_resident_bytes, swapped_bytes

ALLOCATION_FAILED = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "Storage size calculation overflowed",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
"""Fragments of the RuntimeErrors that torch raises if it cannot allocate memory."""


def peak_bytes(device: torch.device) -> int | None:
    """Returns the most memory that this process has held so far, or None if it is unknown.

    On a GPU, this is what torch has reserved there; on the CPU, the resident memory of the process.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    return peak_resident_bytes()


@dataclass(slots=True)
class Signs:
    """Signs that memory is short.

    Attributes:
        blocks: blocks that were watched.
        allocator_retries: how often a GPU's memory was full, and the allocator freed its cache.
        major_faults: pages that had to be read from the disk.
        swapped_bytes: memory that was moved to the disk.
    """

    blocks: int = 0
    allocator_retries: int = 0
    major_faults: int = 0
    swapped_bytes: int = 0


@dataclass(slots=True)
class Pressure:
    """Counts signs that memory is short while a block runs."""

    device: torch.device
    seen: Signs = field(default_factory=Signs)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Adds the signs of a block to `seen`."""
        before = self._now()
        yield
        after = self._now()
        self.seen.blocks += 1
        self.seen.allocator_retries += after.allocator_retries - before.allocator_retries
        self.seen.major_faults += after.major_faults - before.major_faults
        self.seen.swapped_bytes += max(0, after.swapped_bytes - before.swapped_bytes)

    def forget(self) -> None:
        """Starts to count again."""
        self.seen = Signs()

    def _now(self) -> Signs:
        retries = 0
        if self.device.type == "cuda":
            retries = torch.cuda.memory_stats(self.device).get("num_alloc_retries", 0)
        return Signs(
            allocator_retries=retries,
            major_faults=resource.getrusage(resource.RUSAGE_SELF).ru_majflt,
            swapped_bytes=swapped_bytes(),
        )


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
