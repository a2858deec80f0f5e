"""Chooses when gradients are reduced over the ranks, from the memory and the bytes of both ways."""

from dataclasses import dataclass

from rampcli.estimate.layer_memory import gradient_bytes, needs_fsdp
from rampcli.planning.choices import is_chosen_by_plan, with_choice
from rampcli.planning.run_plan import ResolvedPhase
from rampcli.planning.stage_memory import device_memory_bytes, stage_memory, usable_bytes
from rampcli.settings.trainer import AccumulateReduce, TrainerConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """What a way to reduce gradients costs, in the stages that need most.

    Attributes:
        memory_bytes: estimate of the fullest rank.
        sent_bytes: gradients that a rank sends per step, or per update in reinforcement learning.
    """

    memory_bytes: int
    sent_bytes: int


def with_reduction(phase: ResolvedPhase) -> ResolvedPhase:
    """Returns the phase with `last` or `each` for a null of `trainer.accumulate_reduce`.

    It is `each` if the estimate of `last` does not fit the device and the one of `each` is smaller.
    """
    if not is_chosen_by_plan(phase.config, TrainerConfig.accumulate_reduce):
        return phase
    device = device_memory_bytes(phase.config)
    # A vocabulary that is unknown has no memory.
    ways = ways_to_reduce(phase) if device and phase.config.model.vocab_size else None
    needs_each = (
        device is not None
        and ways is not None
        and ways["last"].memory_bytes
        > max(usable_bytes(phase.config, device), ways["each"].memory_bytes)
    )
    return with_choice(phase, TrainerConfig.accumulate_reduce, "each" if needs_each else "last")


def ways_to_reduce(phase: ResolvedPhase) -> dict[AccumulateReduce, Way] | None:
    """Returns both ways, or None if they are the same.

    They differ if data-parallel ranks accumulate gradients that FSDP2 reduces, and there is no
    pipeline.
    """
    config, context = phase.config, phase.config.parallel.context_parallel_size
    accumulating = [
        stage
        for stage in phase.plan.stages
        if phase.passes(stage)[1] > 1
        and stage.data_parallel_size * context > 1
        and needs_fsdp(config, stage.data_parallel_size)
    ]
    if phase.plan.is_piped or not accumulating:
        return None
    ways: dict[AccumulateReduce, Way] = {}
    for name in ("last", "each"):
        changed = with_choice(phase, TrainerConfig.accumulate_reduce, name)
        ways[name] = Way(
            memory_bytes=max(
                stage_memory(changed, stage).peak_bytes for stage in changed.plan.stages
            ),
            sent_bytes=max(
                gradient_bytes(
                    changed.config,
                    data_parallel_size=stage.data_parallel_size,
                    reductions=phase.passes(stage)[1] if name == "each" else 1,
                )
                for stage in accumulating
            ),
        )
    return ways
