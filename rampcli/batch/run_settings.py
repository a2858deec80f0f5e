"""Settings that a plan is made from: the batch, how it changes, and where the run ends."""

from collections.abc import Sequence
from dataclasses import dataclass

from rampcli.batch.micro_batch import FIXED
from rampcli.batch.plan import SAMPLES, BatchUnit
from rampcli.batch.position import START, Position
from rampcli.batch.ramp import RampSchedule
from rampcli.errors import UsageError

LENGTH_KEYS = ("trainer.max_steps", "trainer.max_samples", "trainer.max_tokens")
DECREASE_KEY = "rampup.decrease_batch_size_if_needed"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLength:
    """Where the run ends: at most one of the three limits, or no end. The last step is whole."""

    max_steps: int | None = None
    max_samples: int | None = None
    max_tokens: int | None = None

    def check(self) -> None:
        """Checks that there is at most one limit.

        Raises:
            UsageError: there are several.
        """
        values = (self.max_steps, self.max_samples, self.max_tokens)
        given = {
            key: value for key, value in zip(LENGTH_KEYS, values, strict=True) if value is not None
        }
        if len(given) > 1:
            shown = " and ".join(f"{key}={value}" for key, value in given.items())
            raise UsageError(
                f"the length of the run is set more than once: {shown}",
                keys=tuple(given),
                remedy="one of them",
            )

    def steps(self, ramp: RampSchedule, *, sequence_length: int) -> int | None:
        """Returns the optimiser steps of the whole run, or None if it has no end."""
        if self.max_tokens is not None:
            return ramp.steps_to(-(-self.max_tokens // sequence_length))
        return self.max_steps if self.max_samples is None else ramp.steps_to(self.max_samples)


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstEnd:
    """Where a phase ends: at the first of some limits that are set, or not at all."""

    ends: tuple[RunLength, ...]

    def check(self) -> None:
        """Checks each limit, as `RunLength.check`."""
        for end in self.ends:
            end.check()

    def steps(self, ramp: RampSchedule, *, sequence_length: int) -> int | None:
        """Returns the optimiser steps of the phase, or None if it has no end."""
        found = [end.steps(ramp, sequence_length=sequence_length) for end in self.ends]
        return min((steps for steps in found if steps is not None), default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSettings:
    """Sizes of the largest batch, and how the batch changes. A size that is None is derived.

    Attributes:
        global_batch_size: samples per optimiser step.
        micro_batch_size: samples per data-parallel rank per forward/backward.
        accumulate_grad_batches: micro batches per rank and optimiser step.
        updates: optimiser updates that each batch is divided into.
        rampup_batch_size: `[start, increment, samples]`, or None.
        step_batch_size_schedule: text of a step schedule, or None; excludes `rampup_batch_size`.
        semantics: name in `rampcli.batch.ramp.SEMANTICS`.
        decrease_batch_size_if_needed: decrease batch sizes that do not fit, do not refuse them.
        micro_batch_rule: `fixed` or `largest`, see `rampcli.batch.micro_batch`.
        before: how far the run has come at the first sample that is planned. A ramp or a schedule
            counts from the start of the run.
        phase: name of the phase that is planned, for errors, or None.
    """

    global_batch_size: int | None = None
    micro_batch_size: int | None = None
    accumulate_grad_batches: int | None = None
    unit: BatchUnit = SAMPLES
    updates: int = 1
    rampup_batch_size: Sequence[int] | None = None
    step_batch_size_schedule: str | None = None
    semantics: str = "megatron"
    decrease_batch_size_if_needed: bool = False
    micro_batch_rule: str = FIXED
    before: Position = START
    phase: str | None = None
