"""Values of the optimiser that follow the batch: AdamW's second decay rate, and the weight decay.

`optim.beta2` and `optim.weight_decay` are their values at the largest batch. With `r`, a batch
divided by the largest one, and `f`, the factor by which its batch or its stage scales the learning
rate:

* beta2 ** r halves the weight of a gradient after the same number of tokens (arXiv 2507.07101).
* weight decay x r / f leaves learning rate x weight decay / batch as it is. Its inverse, over the
  samples of the run, is the timescale of AdamW's average (arXiv 2505.13738).
"""

from collections.abc import Callable
from dataclasses import dataclass

from rampcli.schedule.phase_rate import PhaseRate


@dataclass(frozen=True, slots=True)
class ValueCoupling:
    """How a value of the optimiser follows the batch.

    Attributes:
        about: the value, for the description of its setting.
        value: maps the value at the largest batch, r and f to that of a step; None if it stays.
    """

    about: str
    value: Callable[[float, float, float], float] | None = None


BETA2_COUPLINGS: dict[str, ValueCoupling] = {
    "none": ValueCoupling("it stays"),
    "half_life": ValueCoupling(
        "to the power of r, so that its half-life in tokens stays", lambda beta2, r, _: beta2**r
    ),
}
WEIGHT_DECAY_COUPLINGS: dict[str, ValueCoupling] = {
    "none": ValueCoupling("it stays"),
    "timescale": ValueCoupling(
        "times r / f, where f is the factor of the learning rate, so that AdamW's timescale stays",
        lambda decay, r, f: decay * r / f,
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class StepValues:
    """What the groups of the optimisers are set to in a step. None leaves a value as it is."""

    lr: float
    beta2: float | None = None
    weight_decay: float | None = None

    def coupled(self) -> dict[str, float]:
        """Returns the values beside the learning rate that follow the batch, by name."""
        values = {"beta2": self.beta2, "weight_decay": self.weight_decay}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class Couplings:
    """The values of the optimiser over a run.

    Attributes:
        beta2, weight_decay: values at the largest batch.
        beta2_coupling: name in `BETA2_COUPLINGS`.
        weight_decay_coupling: name in `WEIGHT_DECAY_COUPLINGS`.
    """

    beta2: float
    weight_decay: float
    beta2_coupling: str
    weight_decay_coupling: str

    def at(self, rate: PhaseRate, consumed_samples: int, *, global_batch_size: int) -> StepValues:
        """Returns the values of a step.

        Args:
            rate: the learning rate over the run.
            consumed_samples: samples consumed at the end of the step.
            global_batch_size: samples of the step.
        """
        share = global_batch_size / rate.largest_batch_size
        factor = rate.factor_at(consumed_samples, global_batch_size=global_batch_size)
        of_beta2 = BETA2_COUPLINGS[self.beta2_coupling].value
        of_decay = WEIGHT_DECAY_COUPLINGS[self.weight_decay_coupling].value
        return StepValues(
            lr=rate.at(consumed_samples, global_batch_size=global_batch_size),
            beta2=of_beta2 and of_beta2(self.beta2, share, factor),
            weight_decay=of_decay and of_decay(self.weight_decay, share, factor),
        )
