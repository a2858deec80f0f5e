"""How the batch of one optimiser step is split over micro batches and ranks."""

from collections.abc import Mapping
from dataclasses import dataclass

from rampcli.batch.division import divisors, nearest_multiples
from rampcli.errors import Assignments, UsageError, set_to

GLOBAL_KEY = "model.global_batch_size"
MICRO_KEY = "data.micro_batch_size"
ACCUMULATE_KEY = "trainer.accumulate_grad_batches"
NUM_NODES_KEY = "trainer.num_nodes"
DEVICES_KEY = "trainer.devices"
FLEET_KEYS = (NUM_NODES_KEY, DEVICES_KEY)
SHARD_KEY = "parallel.data_parallel_shard_size"
UPDATES_KEY = "rl.updates_per_rollout"


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchUnit:
    """What a batch counts, and how messages and remedies name it. This one counts samples.

    Attributes:
        name: plural of what a batch counts.
        global_key: setting of the global batch.
        micro_key: setting of the micro batch.
        per_micro_unit: how many `micro_key` counts for one of the batch.
        keys: settings that decide how a batch divides, besides the global batch and the nodes.
    """

    name: str = "samples"
    global_key: str = GLOBAL_KEY
    micro_key: str = MICRO_KEY
    per_micro_unit: int = 1
    keys: tuple[str, ...] = (MICRO_KEY,)

    def describe_batch(self, size: int) -> str:
        """Returns a global batch as the subject and the verb of "does not divide"."""
        return f"{self.global_key}={size} does"

    def describe_micro_batch(self, size: int, *, varies: bool) -> str:
        """Returns a micro batch as a factor of a product; the smallest one, if it varies."""
        return f"micro batches of at least {size}" if varies else f"{self.micro_key}={size}"

    def set_micro_batch(self, size: int) -> Assignments:
        """Returns the remedy that sets the micro batch."""
        return set_to(self.micro_key, size * self.per_micro_unit)


SAMPLE_UNIT = BatchUnit()


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelSizes:
    """How many ways the model is split. The remaining factor of the world is data parallel.

    Attributes:
        tensor: ranks that share each layer.
        pipeline: stages that the layers are divided into.
        context: ranks that share each sequence.
        virtual_pipeline: groups of layers per pipeline rank; above 1 for the interleaved schedule.
        pipeline_microbatches: parts of a micro batch that pass through the pipeline.
    """

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    virtual_pipeline: int = 1
    pipeline_microbatches: int = 1

    @property
    def model_parallel_size(self) -> int:
        """Ranks that share one sample."""
        return self.tensor * self.pipeline * self.context

    def data_parallel_size(self, world_size: int) -> int:
        """Returns the number of data-parallel ranks in a world of `world_size` ranks.

        Raises:
            UsageError: `world_size` is not a multiple of the model-parallel size.
        """
        if world_size % self.model_parallel_size:
            raise UsageError(
                f"{world_size} processes do not divide into tensor {self.tensor}"
                f" x pipeline {self.pipeline} x context {self.context}"
                f" = {self.model_parallel_size} model-parallel ranks",
                keys=(
                    *FLEET_KEYS,
                    "parallel.tensor_parallel_size",
                    "parallel.pipeline_parallel_size",
                    "parallel.context_parallel_size",
                ),
                remedy=f"a number of processes that is a multiple of {self.model_parallel_size}",
            )
        return world_size // self.model_parallel_size


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPlan:
    """The batch of one optimiser step.

    `global_batch_size = micro_batch_size x data_parallel_size x accumulate_grad_batches`, exactly.

    Attributes:
        global_batch_size: samples per optimiser step.
        micro_batch_size: samples per data-parallel rank per forward/backward.
        data_parallel_size: number of data-parallel ranks.
        accumulate_grad_batches: micro batches per rank and optimiser step.
    """

    global_batch_size: int
    micro_batch_size: int
    data_parallel_size: int
    accumulate_grad_batches: int

    @classmethod
    def divide(
        cls, global_batch_size: int, *, micro_batch_size: int, data_parallel_size: int
    ) -> "BatchPlan":
        """Splits a global batch over ranks and micro batches.

        The arguments are the attributes of a plan.

        Raises:
            UsageError: the batch does not divide. The message names the nearest sizes that do.
        """
        check_counts({GLOBAL_KEY: global_batch_size, MICRO_KEY: micro_batch_size})
        samples_per_micro_step = micro_batch_size * data_parallel_size
        if global_batch_size % samples_per_micro_step:
            raise does_not_divide(
                global_batch_size, data_parallel_size, smallest_share=micro_batch_size
            )
        return cls(
            global_batch_size=global_batch_size,
            micro_batch_size=micro_batch_size,
            data_parallel_size=data_parallel_size,
            accumulate_grad_batches=global_batch_size // samples_per_micro_step,
        )

    @classmethod
    def solve(
        cls,
        *,
        global_batch_size: int | None,
        micro_batch_size: int | None,
        accumulate_grad_batches: int | None,
        data_parallel_size: int,
    ) -> "BatchPlan":
        """Derives the values that are None from the others.

        Accumulation may be None together with one of the sizes. The arguments are the attributes
        of a plan.

        Raises:
            UsageError: too few values are given, or they contradict each other. The message shows
                the whole product.
        """
        global_batch_size, micro_batch_size = complete_sizes(
            global_batch_size=global_batch_size,
            micro_batch_size=micro_batch_size,
            accumulate_grad_batches=accumulate_grad_batches,
            data_parallel_size=data_parallel_size,
        )
        check_product(
            global_batch_size, micro_batch_size, data_parallel_size, accumulate_grad_batches
        )
        return cls.divide(
            global_batch_size,
            micro_batch_size=micro_batch_size,
            data_parallel_size=data_parallel_size,
        )


def check_counts(counts: Mapping[str, int]) -> None:
    """Checks that the values of some keys are at least one.

    Raises:
        UsageError: one is not.
    """
    for key, count in counts.items():
        if count < 1:
            raise UsageError(
                f"{key}={count} is less than one",
                keys=(key,),
                remedy=set_to(key, 1, note=" or more"),
            )


def check_product(
    global_batch_size: int,
    micro_batch_size: int,
    data_parallel_size: int,
    accumulate_grad_batches: int | None,
) -> None:
    """Checks that a global batch is the product of its parts, if the accumulation is given.

    Raises:
        UsageError: it is not. The message shows the whole product.
    """
    if accumulate_grad_batches is None:
        return
    unit = micro_batch_size * data_parallel_size
    product = unit * accumulate_grad_batches
    if product != global_batch_size:
        remedies = [set_to(GLOBAL_KEY, product)]
        if global_batch_size % unit == 0:
            remedies.append(set_to(ACCUMULATE_KEY, global_batch_size // unit))
        if global_batch_size % (samples := data_parallel_size * accumulate_grad_batches) == 0:
            remedies.append(set_to(MICRO_KEY, global_batch_size // samples))
        raise UsageError(
            f"{MICRO_KEY}={micro_batch_size} x {data_parallel_size} data-parallel ranks"
            f" x {ACCUMULATE_KEY}={accumulate_grad_batches} = {product},"
            f" but {GLOBAL_KEY}={global_batch_size}",
            keys=(GLOBAL_KEY, MICRO_KEY, ACCUMULATE_KEY, *FLEET_KEYS),
            remedy=remedies,
        )


def complete_sizes(
    *,
    global_batch_size: int | None,
    micro_batch_size: int | None,
    accumulate_grad_batches: int | None,
    data_parallel_size: int,
) -> tuple[int, int]:
    """Returns the global and the micro batch size in samples, deriving one that is None.

    Raises:
        UsageError: too few values are given, a size is below one, or the micro batch is not whole.
    """
    given = {
        GLOBAL_KEY: global_batch_size,
        MICRO_KEY: micro_batch_size,
        ACCUMULATE_KEY: accumulate_grad_batches,
    }
    check_counts({key: value for key, value in given.items() if value is not None})
    if micro_batch_size is None:
        if global_batch_size is None or accumulate_grad_batches is None:
            raise UsageError(
                f"{MICRO_KEY} is not set", keys=(MICRO_KEY,), remedy=set_to(MICRO_KEY, 1)
            )
        samples_per_unit = data_parallel_size * accumulate_grad_batches
        if global_batch_size % samples_per_unit:
            raise UsageError(
                f"{GLOBAL_KEY}={global_batch_size} does not divide into"
                f" {ACCUMULATE_KEY}={accumulate_grad_batches}"
                f" x {data_parallel_size} data-parallel ranks = {samples_per_unit}",
                keys=(GLOBAL_KEY, ACCUMULATE_KEY, *FLEET_KEYS),
                remedy=set_to(GLOBAL_KEY, *nearest_multiples(global_batch_size, samples_per_unit)),
            )
        micro_batch_size = global_batch_size // samples_per_unit
    if global_batch_size is None:
        global_batch_size = micro_batch_size * data_parallel_size * (accumulate_grad_batches or 1)
    return global_batch_size, micro_batch_size


def does_not_divide(
    global_batch_size: int,
    data_parallel_size: int,
    *,
    smallest_share: int,
    updates: int = 1,
    varies: bool = False,
    unit: BatchUnit = SAMPLE_UNIT,
) -> UsageError:
    """Returns the error of a batch that does not divide over ranks and micro batches.

    It offers the nearest batches that divide, and the largest smaller micro batch that does.

    Args:
        global_batch_size: the batch, in `unit`.
        data_parallel_size: number of data-parallel ranks.
        smallest_share: a rank's share of the batch must be a multiple of this.
        updates: optimiser updates that the batch is divided into.
        varies: the micro batch is the largest that divides, so a smaller one does not help.
    """
    micro_batch_size, multiple = smallest_share // updates, smallest_share * data_parallel_size
    factors = [
        *([f"{UPDATES_KEY}={updates}"] if updates > 1 else []),
        unit.describe_micro_batch(micro_batch_size, varies=varies),
        f"{data_parallel_size} data-parallel ranks",
    ]
    remedies = [set_to(unit.global_key, *nearest_multiples(global_batch_size, multiple))]
    share, rest = divmod(global_batch_size, data_parallel_size * updates)
    if not (varies or rest):
        remedies.append(unit.set_micro_batch(divisors(share, most=micro_batch_size)[-1]))
    return UsageError(
        f"{unit.describe_batch(global_batch_size)} not divide into {' x '.join(factors)}"
        f" = {multiple * unit.per_micro_unit}",
        keys=(GLOBAL_KEY, *unit.keys, *FLEET_KEYS),
        remedy=remedies,
    )
