"""Counts signs that memory is short."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from rampcli.host_memory import swapped_bytes
from rampcli.tune.trial_files import MemorySigns


@dataclass(slots=True)
class MemoryPressure:
    """Counts signs that memory is short while steps are taken."""

    device: torch.device
    seen: MemorySigns = field(default_factory=MemorySigns)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Adds the signs of a step to `seen`."""
        before = self._now()
        yield
        after = self._now()
        self.seen.watched_steps += 1
        self.seen.allocator_retries += after.allocator_retries - before.allocator_retries
        self.seen.major_faults += after.major_faults - before.major_faults
        self.seen.swapped_bytes += max(0, after.swapped_bytes - before.swapped_bytes)

    def forget(self) -> None:
        """Starts to count again."""
        self.seen = MemorySigns()

    def _now(self) -> MemorySigns:
        retries = 0
        if self.device.type == "cuda":
            retries = torch.cuda.memory_stats(self.device).get("num_alloc_retries", 0)
        return MemorySigns(
            allocator_retries=retries,
            major_faults=resource.getrusage(resource.RUSAGE_SELF).ru_majflt,
            swapped_bytes=swapped_bytes(),
        )
