"""Pipeline arithmetic: layers over the stages, microbatches that fill them, and idle time."""

from math import gcd

from rampcli.batch.division import nearest_multiples
from rampcli.batch.plan import ParallelSizes
from rampcli.errors import UsageError, set_to

LAYERS_KEY = "model.num_layers"
MICROBATCHES_KEY = "parallel.num_pipeline_microbatches"
PIPELINE_SIZE_KEY = "parallel.pipeline_parallel_size"


def check_pipeline(
    *,
    num_pipeline_microbatches: int | None,
    pipeline_size: int,
    num_layers: int,
    num_devices: int = 1,
) -> None:
    """Checks that layers divide over the stages and that microbatches fill them.

    Args:
        num_devices: devices without those of the other model-parallel axes; a size that is offered
            divides them.

    Raises:
        UsageError: the layers or the microbatches are not a multiple of the pipeline's size, or
            there are microbatches without a pipeline.
    """
    if num_layers % pipeline_size:
        common = gcd(num_layers, num_devices) if num_devices > 1 else num_layers
        fewer = max(count for count in range(1, pipeline_size) if common % count == 0)
        raise UsageError(
            f"{LAYERS_KEY}={num_layers} does not divide into {PIPELINE_SIZE_KEY}={pipeline_size}",
            keys=(LAYERS_KEY, PIPELINE_SIZE_KEY),
            remedy=set_to(PIPELINE_SIZE_KEY, fewer),
        )
    if num_pipeline_microbatches is None:
        return
    if pipeline_size == 1:
        raise UsageError(
            f"{MICROBATCHES_KEY}={num_pipeline_microbatches}, but {PIPELINE_SIZE_KEY}=1:"
            " there is no pipeline",
            keys=(MICROBATCHES_KEY, PIPELINE_SIZE_KEY),
            remedy=set_to(MICROBATCHES_KEY, None),
        )
    if num_pipeline_microbatches % pipeline_size:
        nearest = nearest_multiples(num_pipeline_microbatches, pipeline_size)
        raise UsageError(
            f"{MICROBATCHES_KEY}={num_pipeline_microbatches} is not a multiple"
            f" of {PIPELINE_SIZE_KEY}={pipeline_size}",
            keys=(MICROBATCHES_KEY, PIPELINE_SIZE_KEY),
            remedy=set_to(MICROBATCHES_KEY, *nearest),
        )


def bubble(parallel: ParallelSizes, *, accumulate_grad_batches: int) -> float:
    """Returns the share of a step in which a rank waits for the others of its pipeline.

    All accumulated micro batches pass through the pipeline in one schedule, and with
    `num_pipeline_microbatches` each of them in that many parts. A rank is idle while the first
    part reaches the last rank and the last gradient returns: for the time of one part per other
    rank, divided by the groups of layers per rank if the schedule is interleaved. The model ignores
    the time to send activations and the layers before and after the blocks.

    Source: arXiv 2104.04473, section 2.2, whose fraction is of the time without the bubble.
    """
    passing = accumulate_grad_batches * parallel.pipeline_microbatches
    idle = (parallel.pipeline - 1) / parallel.virtual_pipeline
    return idle / (passing + idle)
