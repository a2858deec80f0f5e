"""Prepares a worker for the next stage while the processes of the current one train."""

from rampcli.config import snapshot
from rampcli.gpus import visible_gpus
from rampcli.planning.run_plan import run_plan
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import consumed_samples
from rampcli.train.compiling import compile_ahead


def compile_next_stage(run: RunDirectory, *, world_size: int) -> None:
    """Compiles a layer for the stage after the current one, if the run compiles layers.

    Does nothing with GPUs: the compiler asks CUDA for them, and other workers still use them.

    Args:
        world_size: ranks of the next stage.
    """
    config = snapshot.read(run.config)
    if not config.trainer.compile or visible_gpus():
        return
    consumed = consumed_samples(run)
    plan = run_plan(config, consumed_samples=consumed).plan
    for stage in plan.stages:
        if stage.first_sample > consumed:
            split = plan.batch_on(stage, world_size)
            compile_ahead(config, micro_batch_size=split.micro_batch_size, world_size=world_size)
            return
