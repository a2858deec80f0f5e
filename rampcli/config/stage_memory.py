"""The memory that the stages of a plan need, estimated, and that of the device of a rank."""

from rampcli.batch.training_plan import StagePlan
from rampcli.config.memory import MemoryEstimate, estimate_memory
from rampcli.config.run_plan import Resolved
from rampcli.config.schema import Config
from rampcli.gpus import gpu_memory_bytes

GB = 2**30
"""Bytes of `trainer.device_memory_gb=1`."""


def stage_memory(resolved: Resolved, stage: StagePlan) -> MemoryEstimate:
    """Returns the estimate of a stage's fullest rank."""
    return estimate_memory(
        resolved.config,
        data_parallel_size=stage.data_parallel_size,
        micro_batch_size=stage.micro_batch_size,
        accumulate_grad_batches=stage.accumulate_grad_batches,
    )


def fullest_stage(resolved: Resolved) -> StagePlan:
    """Returns the stage with the largest estimate, the first of several."""
    return max(resolved.plan.stages, key=lambda stage: stage_memory(resolved, stage).peak_bytes)


def device_memory_bytes(config: Config) -> int | None:
    """Returns the memory of the device of one rank, or None if it is unknown."""
    if config.trainer.device_memory_gb is not None:
        return round(config.trainer.device_memory_gb * GB)
    return None if config.trainer.accelerator == "cpu" else gpu_memory_bytes()
