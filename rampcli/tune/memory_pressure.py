"""Counts signs that memory is short."""

import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from rampcli.machine.host_memory import swapped_bytes


@dataclass(slots=True)
class MemoryPressure:
    """Counts signs that memory is short while steps are taken.

    Attributes:
        seen: counts of `rampcli.tune.trial_files.SIGNS`.
    """

    device: torch.device
    seen: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Adds the signs of a step to `seen`."""
        before = self._now()
        yield
        # The difference leaves out what has become less, such as swapped memory that was read back.
        self.seen += self._now() - before
        self.seen["watched_steps"] += 1

    def _now(self) -> Counter[str]:
        retries = 0
        if self.device.type == "cuda":
            retries = torch.cuda.memory_stats(self.device).get("num_alloc_retries", 0)
        return Counter(
            allocator_retries=retries,
            major_faults=resource.getrusage(resource.RUSAGE_SELF).ru_majflt,
            swapped_bytes=swapped_bytes(),
        )
