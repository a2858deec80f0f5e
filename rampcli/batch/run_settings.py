"""What a plan is made from: the batch, how it grows, and where the run ends."""

from collections.abc import Sequence
from dataclasses import dataclass

from rampcli.batch.ramp import RampSchedule
from rampcli.errors import UsageError

LENGTH_KEYS = ("trainer.max_steps", "trainer.max_samples", "trainer.max_tokens")
DECREASE_KEY = "rampup.decrease_batch_size_if_needed"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLength:
    """Where the run ends: at most one of the three is given; none is a run without end. A run ends with a whole step."""

    max_steps: int | None = None
    max_samples: int | None = None
    max_tokens: int | None = None

    def check(self) -> None:
        """Raises a UsageError where two ends are given, or one that is less than one."""
        values = (self.max_steps, self.max_samples, self.max_tokens)
        given = {
            key: value for key, value in zip(LENGTH_KEYS, values, strict=True) if value is not None
        }
        if len(given) > 1:
            shown = " and ".join(f"{key}={value}" for key, value in given.items())
            raise UsageError(
                f"the run has two ends: {shown}", keys=tuple(given), remedy="one of them"
            )
        for key, value in given.items():
            if value < 1:
                raise UsageError(
                    f"{key}={value} is less than one", keys=(key,), remedy=f"{key}=1 or more"
                )

    def steps(self, ramp: RampSchedule, *, sequence_length: int) -> int | None:
        """Optimiser steps of the whole run, or None where it has no end."""
        if self.max_tokens is not None:
            return ramp.steps_to(-(-self.max_tokens // sequence_length))
        return self.max_steps if self.max_samples is None else ramp.steps_to(self.max_samples)


@dataclass(frozen=True, kw_only=True, slots=True)
class RampSettings:
    """How the batch changes: `[start, increment, samples]` or a step schedule, or neither."""

    rampup_batch_size: Sequence[int] | None = None
    step_batch_size_schedule: str | None = None
    semantics: str = "megatron"
    decrease_batch_size_if_needed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSettings:
    """Samples per step and per rank, and micro batches per step, where the batch is largest; one that is None is derived."""

    global_batch_size: int | None = None
    micro_batch_size: int | None = None
    accumulate_grad_batches: int | None = None
