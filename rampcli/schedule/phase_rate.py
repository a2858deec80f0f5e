"""The learning rate of a phase: a schedule over the tokens of the run, or over its own."""

from dataclasses import dataclass
from typing import Protocol

from rampcli.schedule.learning_rate import LearningRate


class Rate(Protocol):
    """The learning rate as a function of the samples that a run has consumed."""

    @property
    def largest_batch_size(self) -> float: ...  # noqa: D102

    def at(self, consumed_samples: int, *, global_batch_size: int) -> float: ...  # noqa: D102

    def factor_at(  # noqa: D102
        self, consumed_samples: int, *, global_batch_size: int
    ) -> float: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseRate:
    """The learning rate of a phase, whose samples may differ in length from those of others.

    Attributes:
        in_tokens: the schedule. It counts tokens where a `LearningRate` counts samples.
        first_sample: samples that the run has consumed when the phase begins.
        first_token: tokens of `in_tokens` before the phase: 0 for a schedule of its own.
        sequence_length: tokens per sample.
    """

    in_tokens: LearningRate
    first_sample: int
    first_token: int
    sequence_length: int

    @property
    def largest_batch_size(self) -> float:
        """The largest batch of the run, in samples of the phase's length."""
        return self.in_tokens.largest_batch_size / self.sequence_length

    def at(self, consumed_samples: int, *, global_batch_size: int) -> float:
        """Returns the learning rate of a step of the phase, as `LearningRate.at`."""
        return self.in_tokens.at(
            self._tokens(consumed_samples), global_batch_size=self._batch(global_batch_size)
        )

    def uncoupled_at(self, consumed_samples: int, *, global_batch_size: int) -> float:
        """Returns the rate of a step before its stage or its batch scales it."""
        return self.in_tokens.uncoupled_at(
            self._tokens(consumed_samples), global_batch_size=self._batch(global_batch_size)
        )

    def factor_at(self, consumed_samples: int, *, global_batch_size: int) -> float:
        """Returns the factor by which its stage or its batch scales the rate of a step."""
        return self.in_tokens.factor_at(
            self._tokens(consumed_samples), global_batch_size=self._batch(global_batch_size)
        )

    def _tokens(self, consumed_samples: int) -> int:
        return self.first_token + (consumed_samples - self.first_sample) * self.sequence_length

    def _batch(self, global_batch_size: int) -> int:
        return global_batch_size * self.sequence_length
