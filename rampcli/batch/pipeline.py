"""Pipeline arithmetic: layers over stages, and microbatches that fill them."""

from rampcli.batch.division import nearest_multiples
from rampcli.errors import UsageError

LAYERS_KEY = "model.num_layers"
PIPELINE_KEY = "parallel.num_pipeline_microbatches"
STAGES_KEY = "parallel.pipeline_parallel_size"


def check_pipeline(*, num_pipeline_microbatches: int | None, stages: int, num_layers: int) -> None:
    """Checks that layers divide over the stages and that microbatches fill them.

    Raises:
        UsageError: the layers or the microbatches are not a multiple of the stages, or there are
            microbatches without a pipeline.
    """
    if num_layers % stages:
        fewer = max(count for count in range(1, stages) if num_layers % count == 0)
        raise UsageError(
            f"{LAYERS_KEY}={num_layers} does not divide into {STAGES_KEY}={stages}",
            keys=(LAYERS_KEY, STAGES_KEY),
            remedy=f"{STAGES_KEY}={fewer}",
        )
    if num_pipeline_microbatches is None:
        return
    if stages == 1:
        raise UsageError(
            f"{PIPELINE_KEY}={num_pipeline_microbatches}, but {STAGES_KEY}=1: there is no pipeline",
            keys=(PIPELINE_KEY, STAGES_KEY),
            remedy=f"{PIPELINE_KEY}=null",
        )
    if num_pipeline_microbatches % stages:
        nearest = " or ".join(map(str, nearest_multiples(num_pipeline_microbatches, stages)))
        raise UsageError(
            f"{PIPELINE_KEY}={num_pipeline_microbatches} is not a multiple"
            f" of {STAGES_KEY}={stages}",
            keys=(PIPELINE_KEY, STAGES_KEY),
            remedy=f"{PIPELINE_KEY}={nearest}",
        )
