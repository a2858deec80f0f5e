"""Prepares a worker for the next stage while the processes of the current one train."""

from contextlib import suppress

from rampcli.config import snapshot
from rampcli.errors import UsageError
from rampcli.machine.gpus import visible_gpus
from rampcli.models.linear import set_matmul_precision
from rampcli.planning.run_plan import run_plan
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import consumed_samples
from rampcli.train.compiling import compile_ahead


def compile_next_stage(run: RunDirectory, *, world_size: int) -> None:
    """Compiles a layer for the next processes of a run, if it compiles layers.

    Does nothing with GPUs: the compiler asks CUDA for them, and other workers still use them.

    Args:
        world_size: ranks of the next processes.
    """
    if visible_gpus():
        return
    consumed = consumed_samples(run)
    resolved = run_plan(snapshot.read(run.config), consumed_samples=consumed)
    first_stages = [stages[0] for stages in resolved.plan.stages_by_processes()]
    following = next((stage for stage in first_stages if stage.first_sample > consumed), None)
    if following is None:
        return
    config = resolved.of(following).config
    if not config.trainer.compile:
        return
    set_matmul_precision(config.trainer.matmul_precision)
    with suppress(UsageError):  # the batch of another stage does not divide over these ranks
        micro = resolved.plan.batch_on(following, world_size).micro_batch_size
        compile_ahead(config, micro_batch_size=micro, world_size=world_size)
