"""Estimated memory of the stages of a plan, and the memory of a rank's device."""

from rampcli.batch.training_plan import StagePlan
from rampcli.estimate.memory import MemoryEstimate, estimate_memory, with_rollout
from rampcli.machine.gpus import gpu_memory_bytes
from rampcli.planning.run_plan import Resolved, ResolvedPhase
from rampcli.settings.config import Config

GIB, MIB = 2**30, 2**20
USABLE_SHARE = 0.95
"""Share of a device's memory that an estimate may fill. Fragmentation takes some of the rest."""
CONTEXT_BYTES = 2 * GIB
"""Memory of a GPU that an estimate leaves to the CUDA context and to communication buffers."""


def stage_memory(phase: ResolvedPhase, stage: StagePlan) -> MemoryEstimate:
    """Returns the estimate of the fullest rank of a stage of a phase."""
    config = phase.config
    micro, accumulation = phase.passes(stage)
    estimate = estimate_memory(
        config,
        data_parallel_size=stage.data_parallel_size,
        micro_batch_size=micro,
        accumulate_grad_batches=accumulation,
    )
    pairs = phase.pairs(stage)
    return estimate if pairs is None else with_rollout(estimate, config, pairs)


def fullest_stage(resolved: Resolved) -> StagePlan:
    """Returns the stage with the largest estimate, the first of several."""
    return max(
        resolved.plan.stages, key=lambda stage: stage_memory(resolved.of(stage), stage).peak_bytes
    )


def device_memory_bytes(config: Config) -> int | None:
    """Returns the memory of the device of one rank, or None if it is unknown."""
    if config.trainer.device_memory_gb is not None:
        return round(config.trainer.device_memory_gb * GIB)
    return None if config.trainer.accelerator == "cpu" else gpu_memory_bytes()


def usable_bytes(config: Config, memory_bytes: int) -> int:
    """Returns how much of a device's memory an estimate may fill."""
    context = 0 if config.trainer.accelerator == "cpu" else CONTEXT_BYTES
    return round(USABLE_SHARE * memory_bytes) - context


def shorten_bytes(size_bytes: int) -> str:
    """Returns a size of memory in GiB or MiB, such as "77GiB"."""
    size = size_bytes / GIB
    if size < 1:
        return f"{size_bytes / MIB:.0f}MiB"
    return f"{size:,.0f}GiB" if size >= 10 else f"{size:.1f}GiB"
