"""Checks that the model divides over the tensor, context, pipeline and data-parallel axes."""

from collections.abc import Iterator, Sequence
from math import gcd

from rampcli.batch.division import divisors
from rampcli.batch.phased_plan import PhasePlan, stage_name
from rampcli.batch.pipeline import MICROBATCHES_KEY, PIPELINE_SIZE_KEY
from rampcli.batch.plan import ACCUMULATE_KEY, GLOBAL_KEY, MICRO_KEY, SHARD_KEY
from rampcli.batch.step_schedule import LENGTH_KEY
from rampcli.batch.training_plan import StagePlan
from rampcli.errors import Report, UsageError, set_to, set_together
from rampcli.settings import Config

TENSOR_KEY = "parallel.tensor_parallel_size"
CONTEXT_KEY = "parallel.context_parallel_size"
VIRTUAL_KEY = "parallel.virtual_pipeline_parallel_size"


def check_tensor(config: Config) -> Iterator[UsageError]:
    """Checks that heads, widths and vocabulary divide over the tensor axis."""
    model, ranks = config.model, config.parallel.tensor_parallel_size
    sizes = {
        "model.num_attention_heads": model.num_attention_heads,
        "model.num_query_groups": model.num_query_groups,
        "model.ffn_hidden_size": model.ffn_hidden_size,
        "model.vocab_size": model.vocab_size,
        "model.hidden_size": model.hidden_size,
    }
    given = {key: size for key, size in sizes.items() if size is not None}
    wrong = {key: size for key, size in given.items() if size % ranks}
    if wrong:
        *others, last = (f"{key}={size}" for key, size in wrong.items())
        parallel = config.parallel
        processes = config.trainer.num_nodes * config.trainer.devices
        other_axes = parallel.pipeline_parallel_size * parallel.context_parallel_size
        if processes % other_axes == 0:
            processes //= other_axes
        yield UsageError(
            f"{', '.join(others)} and {last} do not divide into {TENSOR_KEY}={ranks}"
            if others
            else f"{last} does not divide into {TENSOR_KEY}={ranks}",
            keys=(TENSOR_KEY, *wrong),
            remedy=set_to(TENSOR_KEY, divisors(gcd(processes, *given.values()), most=ranks)[-1]),
        )


def sequence_unit(config: Config) -> int:
    """Returns the tokens that a sequence is a multiple of: tensor ranks x pieces per sequence."""
    context = config.parallel.context_parallel_size
    return (2 * context if context > 1 else 1) * config.parallel.tensor_parallel_size


def check_sequence(config: Config) -> Iterator[UsageError]:
    """Checks that the sequence divides over tensor ranks, and in two pieces per context rank."""
    length, parallel = config.data.sequence_length, config.parallel
    context, tensor = parallel.context_parallel_size, parallel.tensor_parallel_size
    unit = sequence_unit(config)
    if length % unit:
        factors = {}
        if context > 1:
            factors[CONTEXT_KEY] = f"2 pieces x {CONTEXT_KEY}={context}"
        if tensor > 1:
            factors[TENSOR_KEY] = f"{TENSOR_KEY}={tensor}"
        below = length - length % unit
        lengths = [size for size in (below, below + unit) if size]
        yield UsageError(
            f"{LENGTH_KEY}={length} does not divide into {' x '.join(factors.values())}",
            keys=(LENGTH_KEY, *factors),
            remedy=set_to(LENGTH_KEY, *lengths),
        )


def check_pipeline_parts(config: Config) -> Iterator[UsageError]:
    """Checks that layers divide over the pipeline, and that gradients are reduced once a step."""
    parallel, layers = config.parallel, config.model.num_layers
    ranks, parts = parallel.pipeline_parallel_size, parallel.virtual_pipeline_parallel_size
    if parts > 1 and ranks == 1:
        yield UsageError(
            f"{VIRTUAL_KEY}={parts} needs a pipeline, and {PIPELINE_SIZE_KEY}=1",
            keys=(VIRTUAL_KEY, PIPELINE_SIZE_KEY),
            remedy=set_to(VIRTUAL_KEY, 1),
        )
    # Layers that do not divide over the ranks are reported by `check_pipeline`.
    elif layers % ranks == 0 and layers % (ranks * parts):
        yield UsageError(
            f"model.num_layers={layers} does not divide into {PIPELINE_SIZE_KEY}={ranks} x"
            f" {VIRTUAL_KEY}={parts}",
            keys=(VIRTUAL_KEY, "model.num_layers", PIPELINE_SIZE_KEY),
            remedy=set_to(VIRTUAL_KEY, divisors(layers // ranks, most=parts)[-1]),
        )
    if ranks > 1 and config.trainer.accumulate_reduce == "each":
        yield UsageError(
            f"trainer.accumulate_reduce=each and {PIPELINE_SIZE_KEY}={ranks} exclude each"
            " other: a pipeline reduces after its last micro batch",
            keys=("trainer.accumulate_reduce", PIPELINE_SIZE_KEY),
            remedy=set_to("trainer.accumulate_reduce", "last"),
        )


def check_stages(
    config: Config, stages: Sequence[StagePlan], *, phase: PhasePlan | None = None
) -> None:
    """Checks that data-parallel ranks divide into shards and micro batches into pipelines.

    Args:
        phase: the phase of the stages, or None.

    Raises:
        UsageError: all misfits together.
    """
    report = Report()
    report.errors += _check_shards(config, stages, phase)
    report.errors += _check_pieces(config, stages)
    report.errors += _check_rounds(config, stages, phase)
    report.close()


def _check_shards(
    config: Config, stages: Sequence[StagePlan], phase: PhasePlan | None
) -> Iterator[UsageError]:
    """Checks that the data-parallel ranks of each stage divide into groups that share weights."""
    shard = config.parallel.data_parallel_shard_size
    if shard is None:
        return
    for stage in stages:
        if stage.data_parallel_size % shard:
            common = gcd(*(stage.data_parallel_size for stage in stages))
            yield UsageError(
                f"{stage_name(stage, phase)}: {stage.data_parallel_size} data-parallel"
                f" {'ranks do' if stage.data_parallel_size > 1 else 'rank does'} not divide into"
                f" {SHARD_KEY}={shard}",
                keys=(SHARD_KEY, "trainer.num_nodes", "trainer.devices"),
                remedy=set_to(SHARD_KEY, divisors(common, most=shard)[-1], None),
            )
            return


def _check_pieces(config: Config, stages: Sequence[StagePlan]) -> Iterator[UsageError]:
    """Checks that the micro batch divides into the parts that pass through the pipeline."""
    parallel = config.parallel
    pieces, ranks = parallel.num_pipeline_microbatches, parallel.pipeline_parallel_size
    # The last two conditions are reported by `check_pipeline`.
    if pieces is None or not stages or ranks == 1 or pieces % ranks:
        return
    micro = stages[0].micro_batch_size
    if micro % pieces:
        fitting = [size for size in divisors(micro, most=micro) if size % ranks == 0]
        nearest = min(fitting, key=lambda size: abs(size - pieces), default=None)
        interleaved = parallel.virtual_pipeline_parallel_size > 1 and any(
            stage.accumulate_grad_batches % ranks for stage in stages
        )
        yield UsageError(
            f"{MICRO_KEY}={micro} does not divide into {MICROBATCHES_KEY}={pieces}",
            keys=(MICROBATCHES_KEY, MICRO_KEY),
            remedy=set_together(
                {MICROBATCHES_KEY: nearest}
                | ({VIRTUAL_KEY: 1} if interleaved and nearest is None else {})
            ),
        )


def _check_rounds(
    config: Config, stages: Sequence[StagePlan], phase: PhasePlan | None
) -> Iterator[UsageError]:
    """Checks that the interleaved schedule gets whole rounds of micro batches."""
    ranks, pieces = (
        config.parallel.pipeline_parallel_size,
        config.parallel.num_pipeline_microbatches,
    )
    if config.parallel.virtual_pipeline_parallel_size == 1:
        return
    for stage in stages:
        micro_batches = stage.accumulate_grad_batches * (pieces or 1)
        if micro_batches % ranks:
            yield UsageError(
                f"{stage_name(stage, phase)}: the interleaved schedule takes micro batches"
                f" {ranks} at a time, and a step has {micro_batches}",
                keys=(VIRTUAL_KEY, PIPELINE_SIZE_KEY, GLOBAL_KEY, MICRO_KEY, ACCUMULATE_KEY),
                remedy=set_to(VIRTUAL_KEY, 1),
            )
            return


CHECKS = (check_tensor, check_sequence, check_pipeline_parts)
