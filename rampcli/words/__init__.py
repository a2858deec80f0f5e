"""Translates batch settings of other systems into ours, and our plan into their settings.

A new system is a module with its `SPELLINGS` and a `write` function, and an entry in `DIALECTS`.
"""

from collections.abc import Callable
from dataclasses import replace

from rampcli.batch.step_schedule import to_entries
from rampcli.batch.training_plan import StagePlan, TrainingPlan
from rampcli.words import bridge, maxtext, maxtext_mesh, megatron, nemo, rl
from rampcli.words.translation import Source, Translation

SPELLINGS: dict[str, str] = nemo.SPELLINGS | bridge.SPELLINGS | maxtext.SPELLINGS | rl.SPELLINGS
"""Our key for each word that means exactly one of our keys."""
COMBINED: dict[str, tuple[type, str]] = maxtext.WORDS | dict.fromkeys(maxtext_mesh.AXES, (int, "1"))
"""Type and example of each word whose meaning depends on other settings."""
FOREIGN = frozenset({*SPELLINGS, *COMBINED})
"""Every word that is accepted."""

DIALECTS: dict[str, Callable[[Source], Translation]] = {
    "NeMo 1": nemo.write_nemo_1,
    "NeMo 2": nemo.write_nemo_2,
    "Megatron Bridge": bridge.write,
    "Megatron-LM": megatron.write,
    "MaxText": maxtext.write,
}


def translate_plan(
    plan: TrainingPlan,
    *,
    rampup_batch_size: list[int] | None,
    step_batch_size_schedule: str | None,
    data_parallel_shard_size: int | None = None,
    num_pipeline_microbatches: int | None = None,
    expansion_factor_real_data: float | None = None,
) -> dict[str, Translation]:
    """Returns the batch of a plan in each system's words, ready to paste, by system.

    Args:
        plan: the run.
        rampup_batch_size: `[start, increment, samples]`, or None.
        step_batch_size_schedule: text of the setting, or None.
        data_parallel_shard_size: ranks that share one copy of the weights, or None for all.
        num_pipeline_microbatches: parts of a stage's micro batch, or None.
        expansion_factor_real_data: hosts per reading host, or None.
    """
    source = Source(
        plan=plan,
        stage=_largest_stage(plan),
        ramp=None if len(plan.ramp.thresholds) == 1 else rampup_batch_size,
        steps=None if step_batch_size_schedule is None else to_entries(plan.ramp.thresholds),
        data_parallel_shard_size=data_parallel_shard_size,
        num_pipeline_microbatches=num_pipeline_microbatches,
        expansion_factor_real_data=expansion_factor_real_data,
    )
    return {name: write(source) for name, write in DIALECTS.items()}


def _largest_stage(plan: TrainingPlan) -> StagePlan:
    """Returns the largest stage, on all the nodes if the run ends before the largest batch."""
    stage = max(plan.stages, key=lambda stage: stage.global_batch_size)
    if plan.ramp.decreased or stage.global_batch_size >= max(plan.ramp.scheduled_sizes()):
        return stage
    nodes = plan.fleet.num_nodes
    return replace(
        stage,
        num_nodes=nodes,
        world_size=nodes * plan.fleet.devices,
        data_parallel_size=plan.fleet.data_parallel_size(nodes),
    )
