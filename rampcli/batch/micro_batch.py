"""The micro batch of each stage (`rampup.micro_batch`)."""

from dataclasses import dataclass, field

from rampcli.batch.division import divisors
from rampcli.batch.pipeline import MICROBATCHES_KEY
from rampcli.batch.plan import (
    MICRO_KEY,
    SAMPLE_UNIT,
    BatchPlan,
    BatchUnit,
    ParallelSizes,
    does_not_divide,
)
from rampcli.errors import UsageError, set_to

STAGE_MICRO_KEY = "rampup.micro_batch"
FIXED, LARGEST = "fixed", "largest"
UNLIMITED = 10**18
"""Size of a micro batch that varies and may be a rank's whole share of a batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatchRule:
    """How large the micro batch of a stage is.

    Attributes:
        size: samples per data-parallel rank per forward/backward; at most, if it varies.
        varies: each stage has the largest micro batch up to `size` that divides its batch.
            Otherwise each stage has `size`.
        updates: optimiser updates that a batch is divided into; above 1 in reinforcement learning
            only.
        parallel: how the model is split.
    """

    size: int
    varies: bool = False
    updates: int = 1
    unit: BatchUnit = SAMPLE_UNIT
    parallel: ParallelSizes = field(default_factory=ParallelSizes)

    @property
    def smallest_share(self) -> int:
        """Samples that a rank's share of a batch must be a multiple of."""
        if not self.varies:
            return self.size * self.updates
        return max(self.parallel.pipeline_microbatches, self._round) * self.updates

    @property
    def _round(self) -> int:
        """Parts of micro batches that the interleaved schedule takes in turn, or 1."""
        return self.parallel.pipeline if self.parallel.virtual_pipeline > 1 else 1

    def on(self, global_batch_size: int, data_parallel_size: int) -> int | None:
        """Returns the micro batch of a batch on some ranks, or None if the batch does not divide.

        One that varies also divides into the parts that pass through a pipeline, and leaves the
        interleaved schedule whole rounds.
        """
        share, rest = divmod(global_batch_size, data_parallel_size * self.updates)
        if rest:
            return None
        if not self.varies:
            return None if share % self.size else self.size
        parts = self.parallel.pipeline_microbatches
        return max(
            (
                size
                for size in divisors(share, most=self.size)
                if size % parts == 0 and share // size * parts % self._round == 0
            ),
            default=None,
        )

    def divide(self, global_batch_size: int, data_parallel_size: int) -> BatchPlan:
        """Splits a batch over ranks and micro batches.

        Raises:
            UsageError: the batch does not divide. The message names the nearest sizes that do.
        """
        size = self.on(global_batch_size, data_parallel_size)
        if size is None:
            raise does_not_divide(
                global_batch_size,
                data_parallel_size,
                smallest_share=self.smallest_share,
                updates=self.updates,
                varies=self.varies,
                unit=self.unit,
            )
        return BatchPlan.divide(
            global_batch_size, micro_batch_size=size, data_parallel_size=data_parallel_size
        )

    def check(self) -> None:
        """Checks that a micro batch that varies can have the parts that a pipeline needs.

        Raises:
            UsageError: it is too small.
        """
        parts = self.parallel.pipeline_microbatches
        if self.varies and self.size < parts:
            raise UsageError(
                f"{MICRO_KEY}={self.size} is smaller than {MICROBATCHES_KEY}={parts}",
                keys=(MICRO_KEY, MICROBATCHES_KEY),
                remedy=set_to(MICRO_KEY, parts, note=" or more"),
            )
