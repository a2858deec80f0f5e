"""Whether a model can be split as it is to be, over the tensor, context, pipeline and data-parallel axes."""

from collections.abc import Sequence
from math import gcd

from rampcli.batch.division import divisors
from rampcli.batch.pipeline import PIPELINE_KEY, STAGES_KEY
from rampcli.batch.plan import ACCUMULATE_KEY, GLOBAL_KEY, MICRO_KEY
from rampcli.batch.training_plan import StagePlan
from rampcli.config.choices import AccumulateReduce
from rampcli.config.schema import Config
from rampcli.errors import Report, UsageError

TENSOR_KEY, CONTEXT_KEY, SHARD_KEY = (
    "parallel.tensor_parallel_size",
    "parallel.context_parallel_size",
    "parallel.data_parallel_shard_size",
)
VIRTUAL_KEY = "parallel.virtual_pipeline_parallel_size"
SEQUENCE_KEY = "data.sequence_length"


def check_tensor(config: Config) -> None:
    """Heads, widths and vocabulary divide over the tensor axis."""
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
        processes = config.trainer.num_nodes * config.trainer.devices
        raise UsageError(
            f"{', '.join(others)} and {last} do not divide into {TENSOR_KEY}={ranks}"
            if others
            else f"{last} does not divide into {TENSOR_KEY}={ranks}",
            keys=(TENSOR_KEY, *wrong),
            remedy=f"{TENSOR_KEY}={divisors(gcd(processes, *given.values()), most=ranks)[-1]}",
        )


def check_sequence(config: Config) -> None:
    """The sequence divides into two pieces for each rank of the context axis, and those over the tensor axis."""
    length, context, tensor = (
        config.data.sequence_length,
        config.parallel.context_parallel_size,
        config.parallel.tensor_parallel_size,
    )
    unit = (2 * context if context > 1 else 1) * tensor
    if length % unit:
        needed = " x ".join(
            part
            for part, used in (
                (f"2 pieces x {CONTEXT_KEY}={context}", context > 1),
                (f"{TENSOR_KEY}={tensor}", tensor > 1),
            )
            if used
        )
        lengths = [size for size in (length - length % unit, length - length % unit + unit) if size]
        raise UsageError(
            f"{SEQUENCE_KEY}={length} does not divide into {needed}",
            keys=(
                SEQUENCE_KEY,
                *([CONTEXT_KEY] if context > 1 else []),
                *([TENSOR_KEY] if tensor > 1 else []),
            ),
            remedy=f"{SEQUENCE_KEY}={' or '.join(map(str, lengths))}",
        )


def check_pipeline_parts(config: Config) -> None:
    """Layers divide over the parts of all pipeline ranks, and what is asked of the gradients goes with a pipeline."""
    ranks, parts = (
        config.parallel.pipeline_parallel_size,
        config.parallel.virtual_pipeline_parallel_size,
    )
    layers = config.model.num_layers
    report = Report()
    with report.noting():
        if parts > 1 and ranks == 1:
            raise UsageError(
                f"{VIRTUAL_KEY}={parts}, and {STAGES_KEY}=1: there is no pipeline",
                keys=(VIRTUAL_KEY, STAGES_KEY),
                remedy=f"{VIRTUAL_KEY}=1",
            )
        if layers % ranks == 0 and layers % (
            ranks * parts
        ):  # the other half is an error of its own
            raise UsageError(
                f"model.num_layers={layers} does not divide into {STAGES_KEY}={ranks} x {VIRTUAL_KEY}={parts}",
                keys=(VIRTUAL_KEY, "model.num_layers", STAGES_KEY),
                remedy=f"{VIRTUAL_KEY}={divisors(layers // ranks, most=parts)[-1]}",
            )
    with report.noting():
        if ranks > 1 and config.trainer.accumulate_reduce is AccumulateReduce.each:
            raise UsageError(
                f"trainer.accumulate_reduce=each, and {STAGES_KEY}={ranks}: a pipeline reduces after its last micro batch",
                keys=("trainer.accumulate_reduce", STAGES_KEY),
                remedy="trainer.accumulate_reduce=last",
            )
    report.close()


def check_stages(config: Config, stages: Sequence[StagePlan]) -> None:
    """In every stage of a run, the data-parallel ranks divide into groups that share weights, and the micro batches suit the pipeline.

    Raises:
        UsageError: all that does not fit.
    """
    report = Report()
    with report.noting():
        _check_shards(config, stages)
    with report.noting():
        _check_pieces(config, stages)
    with report.noting():
        _check_rounds(config, stages)
    report.close()


def _check_shards(config: Config, stages: Sequence[StagePlan]) -> None:
    shard = config.parallel.data_parallel_shard_size
    if shard is None:
        return
    for stage in stages:
        if stage.data_parallel_size % shard:
            common = gcd(*(stage.data_parallel_size for stage in stages))
            raise UsageError(
                f"stage {stage.stage}: {stage.data_parallel_size} data-parallel"
                f" {'ranks do' if stage.data_parallel_size > 1 else 'rank does'} not divide into {SHARD_KEY}={shard}",
                keys=(SHARD_KEY, "trainer.num_nodes", "trainer.devices"),
                remedy=f"{SHARD_KEY}={divisors(common, most=shard)[-1]}, or null",
            )


def _check_pieces(config: Config, stages: Sequence[StagePlan]) -> None:
    pieces, ranks = (
        config.parallel.num_pipeline_microbatches,
        config.parallel.pipeline_parallel_size,
    )
    if (
        pieces is None or not stages or ranks == 1 or pieces % ranks
    ):  # the last two are errors of their own
        return
    micro = stages[0].micro_batch_size
    if micro % pieces:
        fitting = [size for size in divisors(micro, most=micro) if size % ranks == 0]
        nearest = min(fitting, key=lambda size: abs(size - pieces), default=None)
        interleaved = config.parallel.virtual_pipeline_parallel_size > 1 and any(
            stage.accumulate_grad_batches % ranks for stage in stages
        )
        raise UsageError(
            f"{MICRO_KEY}={micro} does not divide into {PIPELINE_KEY}={pieces}",
            keys=(PIPELINE_KEY, MICRO_KEY),
            remedy=f"{PIPELINE_KEY}={nearest or 'null'}"
            + (f" {VIRTUAL_KEY}=1" if interleaved and nearest is None else ""),
        )


def _check_rounds(config: Config, stages: Sequence[StagePlan]) -> None:
    ranks, parts = (
        config.parallel.pipeline_parallel_size,
        config.parallel.virtual_pipeline_parallel_size,
    )
    pieces = config.parallel.num_pipeline_microbatches or 1
    if parts == 1:
        return
    for stage in stages:
        if stage.accumulate_grad_batches * pieces % ranks:
            raise UsageError(
                f"stage {stage.stage}: the interleaved schedule takes micro batches {ranks} at a time, and a step has"
                f" {stage.accumulate_grad_batches * pieces}",
                keys=(VIRTUAL_KEY, STAGES_KEY, GLOBAL_KEY, MICRO_KEY, ACCUMULATE_KEY),
                remedy=f"{VIRTUAL_KEY}=1",
            )


SPLIT_CHECKS = (check_tensor, check_sequence, check_pipeline_parts)
