"""The learning rate of a phase: its part of a schedule of the run, or a schedule of its own."""

from dataclasses import dataclass

from rampcli.schedule.learning_rate import LearningRate


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseRate:
    """The learning rate of a phase, whose samples may differ in length from those of others.

    Attributes:
        schedule: what it counts is a sample of the phase, or a whole share of one.
        first_sample: samples that the run has consumed when the phase begins.
        first_count: what `schedule` has counted by then: 0 for a schedule of the phase's own.
        counts_per_sample: what `schedule` counts for a sample of the phase.
    """

    schedule: LearningRate
    first_sample: int
    first_count: int
    counts_per_sample: int

    @property
    def largest_batch_size(self) -> float:
        """The largest batch of the run, in samples of the phase's length."""
        return self.schedule.largest_batch_size / self.counts_per_sample

    def at(self, consumed_samples: int, *, global_batch_size: int) -> float:
        """Returns the learning rate of a step of the phase, as `LearningRate.at`."""
        return self.schedule.at(
            self._count(consumed_samples), global_batch_size=self._batch(global_batch_size)
        )

    def uncoupled_at(self, consumed_samples: int, *, global_batch_size: int) -> float:
        """Returns the rate of a step before its stage or its batch scales it."""
        return self.schedule.uncoupled_at(
            self._count(consumed_samples), global_batch_size=self._batch(global_batch_size)
        )

    def factor_at(self, consumed_samples: int, *, global_batch_size: int) -> float:
        """Returns the factor by which its stage or its batch scales the rate of a step."""
        return self.schedule.factor_at(
            self._count(consumed_samples), global_batch_size=self._batch(global_batch_size)
        )

    def is_warming_up(self, consumed_samples: int) -> bool:
        """Returns whether a step that ends at `consumed_samples` is before the end of a warm-up."""
        return self._count(consumed_samples) < self.schedule.warmup_samples

    def _count(self, consumed_samples: int) -> int:
        return self.first_count + (consumed_samples - self.first_sample) * self.counts_per_sample

    def _batch(self, global_batch_size: int) -> int:
        return global_batch_size * self.counts_per_sample
