"""Checks that the stages of a plan divide over the pipeline and the data-parallel ranks."""

from collections.abc import Iterator, Sequence
from math import gcd

from rampcli.batch.division import divisors
from rampcli.batch.pipeline import MICROBATCHES_KEY, PIPELINE_SIZE_KEY
from rampcli.batch.plan import ACCUMULATE_KEY, GLOBAL_KEY, MICRO_KEY, SHARD_KEY
from rampcli.batch.training_plan import PhasePlan, StagePlan
from rampcli.errors import ErrorReport, UsageError, set_to, set_together
from rampcli.settings.config import Config
from rampcli.settings.parallel import ParallelConfig
from rampcli.settings.trainer import TrainerConfig


def check_stages(config: Config, stages: Sequence[StagePlan], phase: PhasePlan) -> None:
    """Checks that data-parallel ranks divide into shards and micro batches into pipelines.

    Args:
        phase: the phase of the stages.

    Raises:
        UsageError: all misfits together.
    """
    report = ErrorReport()
    report.errors += _check_shards(config, stages, phase)
    report.errors += _check_pieces(config, stages)
    report.errors += _check_rounds(config, stages, phase)
    report.close()


def _check_shards(
    config: Config, stages: Sequence[StagePlan], phase: PhasePlan
) -> Iterator[UsageError]:
    """Checks that the data-parallel ranks of each stage divide into groups that share weights."""
    shard = config.parallel.data_parallel_shard_size
    if shard is None:
        return
    for stage in stages:
        if stage.data_parallel_size % shard:
            common = gcd(*(stage.data_parallel_size for stage in stages))
            yield UsageError(
                f"{phase.stage_name(stage)}: {stage.data_parallel_size} data-parallel"
                f" {'ranks do' if stage.data_parallel_size > 1 else 'rank does'} not divide into"
                f" {SHARD_KEY}={shard}",
                keys=(SHARD_KEY, TrainerConfig.num_nodes, TrainerConfig.devices),
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
                | (
                    {ParallelConfig.virtual_pipeline_parallel_size: 1}
                    if interleaved and nearest is None
                    else {}
                )
            ),
        )


def _check_rounds(
    config: Config, stages: Sequence[StagePlan], phase: PhasePlan
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
                f"{phase.stage_name(stage)}: the interleaved schedule takes micro batches"
                f" {ranks} at a time, and a step has {micro_batches}",
                keys=(
                    ParallelConfig.virtual_pipeline_parallel_size,
                    PIPELINE_SIZE_KEY,
                    GLOBAL_KEY,
                    MICRO_KEY,
                    ACCUMULATE_KEY,
                ),
                remedy=set_to(ParallelConfig.virtual_pipeline_parallel_size, 1),
            )
            return
