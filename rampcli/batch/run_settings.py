"""Settings that a plan is made from: the batch, how it changes, and where the run ends."""

from collections.abc import Sequence
from dataclasses import dataclass

from rampcli.batch.micro_batch import FIXED
from rampcli.batch.plan import SAMPLE_UNIT, BatchUnit
from rampcli.batch.position import RUN_START, STEPS_UNIT, TOKENS_UNIT, Goal, RunPosition
from rampcli.batch.ramp import RampSchedule

LENGTH_KEYS = ("trainer.max_steps", "trainer.max_samples", "trainer.max_tokens")
DECREASE_KEY = "rampup.decrease_batch_size_if_needed"


def steps_to_end(ends: Sequence[Goal], ramp: RampSchedule, *, sequence_length: int) -> int | None:
    """Returns the whole steps up to the first of some ends, or None if there are none."""

    def steps(end: Goal) -> int:
        if end.unit == STEPS_UNIT:
            return end.count
        return ramp.steps_to(-(-end.count // (sequence_length if end.unit == TOKENS_UNIT else 1)))

    return min(map(steps, ends), default=None)


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
    unit: BatchUnit = SAMPLE_UNIT
    updates: int = 1
    rampup_batch_size: Sequence[int] | None = None
    step_batch_size_schedule: str | None = None
    semantics: str = "megatron"
    decrease_batch_size_if_needed: bool = False
    micro_batch_rule: str = FIXED
    before: RunPosition = RUN_START
    phase: str | None = None
