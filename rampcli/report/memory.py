"""The memory of a plan's stages, estimated: cells, notes, tables and plain data."""

from collections.abc import Sequence
from typing import Any, get_args

from rich.table import Table

from rampcli.batch.division import divisors
from rampcli.batch.plan import ACCUMULATE_KEY, GLOBAL_KEY, MICRO_KEY, SHARD_KEY
from rampcli.batch.training_plan import StagePlan
from rampcli.config.compose import apply_overrides
from rampcli.config.memory import KINDS, MemoryEstimate, estimate_memory
from rampcli.config.resolve import resolve
from rampcli.config.run_plan import Resolved
from rampcli.config.schema import ActivationCheckpointing, Config
from rampcli.config.stage_memory import (
    GB,
    device_memory_bytes,
    fullest_stage,
    stage_memory,
)
from rampcli.errors import UsageError
from rampcli.report.tables import build_table

MB = 2**20
USABLE_SHARE = 0.95
"""Share of a device's memory that a remedy may fill. Fragmentation takes some of it."""
CONTEXT_BYTES = 2 * GB
"""Memory that a remedy leaves on a GPU to the context of CUDA and to buffers of communication."""
CHECKPOINTING_KEY = "trainer.activation_checkpointing"
REDUCE_KEY = "trainer.accumulate_reduce"


def usable_bytes(config: Config, memory_bytes: int) -> int:
    """Returns how much of a device's memory an estimate may fill."""
    context = 0 if config.trainer.accelerator == "cpu" else CONTEXT_BYTES
    return round(USABLE_SHARE * memory_bytes) - context


def shorten_bytes(size_bytes: int) -> str:
    """Returns a size in GB of 2^30 bytes or MB of 2^20, such as "77GB"."""
    size = size_bytes / GB
    if size < 1:
        return f"{size_bytes / MB:.0f}MB"
    return f"{size:,.0f}GB" if size >= 10 else f"{size:.1f}GB"


def memory_cell(resolved: Resolved, stage: StagePlan) -> str:
    """Returns the estimate of a stage's fullest rank as text; the tilde marks estimates."""
    return f"~{shorten_bytes(stage_memory(resolved, stage).peak_bytes)}"


def memory_notes(resolved: Resolved) -> list[str]:
    """Returns a note if the estimate of a stage exceeds the device's memory, with what fits."""
    config = resolved.config
    memory_bytes = device_memory_bytes(config)
    if memory_bytes is None:
        return []
    peaks = {stage: stage_memory(resolved, stage).peak_bytes for stage in resolved.plan.stages}
    over = [stage.stage for stage, peak in peaks.items() if peak > memory_bytes]
    if not over:
        return []
    stages = f"stage {over[0]}"
    if len(over) > 1:
        is_range = len(over) == over[-1] - over[0] + 1
        stages = f"stages {over[0]} to {over[-1]}" if is_range else f"{len(over)} stages"
    device = "process" if config.trainer.accelerator == "cpu" else "GPU"
    return [
        f"an estimated {shorten_bytes(max(peaks.values()))} of {shorten_bytes(memory_bytes)}"
        f" per {device} in {stages};"
        f" {_describe_remedies(resolved, usable_bytes(config, memory_bytes))}"
    ]


def _describe_remedies(resolved: Resolved, usable: int) -> str:
    """Returns which settings fit: each alone, or else all of them together."""
    choices = _choices(resolved, usable)
    fitting = [
        next((words for words in choice if _fits_with(resolved, words, usable)), None)
        for choice in choices
    ]
    if alone := [" ".join(words) for words in fitting if words]:
        return f"fits with {', or '.join(alone)}"
    strongest = [word for *_, words in choices for word in words]
    if strongest and _fits_with(resolved, strongest, usable):
        return f"fits with {' '.join(strongest)}"
    return "smaller micro batches, recomputed activations and more shards do not suffice"


def _choices(resolved: Resolved, usable: int) -> list[list[list[str]]]:
    """Returns changes that need less memory, as overrides: per setting, the mildest first."""
    trainer, parallel = resolved.config.trainer, resolved.config.parallel
    modes = get_args(ActivationCheckpointing)
    stronger = modes[modes.index(trainer.activation_checkpointing) + 1 :]
    choices = [
        _smaller_micro_batches(resolved, usable),
        [[f"{CHECKPOINTING_KEY}={mode}"] for mode in stronger],
        [[f"{REDUCE_KEY}=each"]] if trainer.accumulate_reduce == "last" else [],
        [[f"{SHARD_KEY}=null"]] if parallel.data_parallel_shard_size is not None else [],
    ]
    return [choice for choice in choices if choice]


def _smaller_micro_batches(resolved: Resolved, usable: int) -> list[list[str]]:
    """Returns the largest smaller micro batch that fits every stage, and the smallest of all."""
    config, stages = resolved.config, resolved.plan.stages
    pieces = config.parallel.num_pipeline_microbatches or 1
    # Every stage's batch then divides as before.
    smaller = [
        size
        for size in divisors(stages[0].micro_batch_size, most=stages[0].micro_batch_size - 1)
        if size % pieces == 0
    ]
    fitting = [
        size
        for size in smaller
        if all(
            estimate.peak_bytes <= usable
            for estimate in (_with_micro_batch(resolved, stage, size) for stage in stages)
        )
    ]
    pinned = []
    if config.trainer.accumulate_grad_batches is not None:
        pinned.append(f"{ACCUMULATE_KEY}=null")
    if config.model.global_batch_size is None:
        pinned.append(f"{GLOBAL_KEY}={resolved.plan.global_batch_size}")
    return [[f"{MICRO_KEY}={size}", *pinned] for size in [*fitting[-1:], *smaller[:1]]]


def _with_micro_batch(resolved: Resolved, stage: StagePlan, size: int) -> MemoryEstimate:
    return estimate_memory(
        resolved.config,
        data_parallel_size=stage.data_parallel_size,
        micro_batch_size=size,
        accumulate_grad_batches=_accumulated(stage, size),
    )


def _accumulated(stage: StagePlan, micro_batch_size: int) -> int:
    """Returns how many micro batches of a size a rank needs for its share of the batch."""
    return -(-stage.global_batch_size // (stage.data_parallel_size * micro_batch_size))


def _fits_with(resolved: Resolved, words: Sequence[str], usable: int) -> bool:
    try:
        changed = resolve(apply_overrides(resolved.config, words))
    except UsageError:
        return False
    return all(stage_memory(changed, stage).peak_bytes <= usable for stage in changed.plan.stages)


def estimates(resolved: Resolved, micro_batches: Sequence[int]) -> list[dict[str, Any]]:
    """Returns the estimates of the fullest stage with several micro batch sizes, as plain data.

    Each has `stage`, `micro_batch_size`, `accumulate_grad_batches` (rounded up), the bytes of each
    kind of memory (`weights_bytes` and so on), their sum `peak_bytes`, `moment`,
    `device_memory_bytes` (None if unknown) and `fits` (None if unknown).
    """
    stage, memory_bytes = fullest_stage(resolved), device_memory_bytes(resolved.config)
    rows = []
    for size in micro_batches:
        estimate = _with_micro_batch(resolved, stage, size)
        fits = None
        if memory_bytes is not None:
            fits = estimate.peak_bytes <= usable_bytes(resolved.config, memory_bytes)
        rows.append(
            {
                "stage": stage.stage,
                "micro_batch_size": size,
                "accumulate_grad_batches": _accumulated(stage, size),
                **{f"{kind}_bytes": number for kind, number in estimate.by_kind().items()},
                "peak_bytes": estimate.peak_bytes,
                "moment": estimate.moment,
                "device_memory_bytes": memory_bytes,
                "fits": fits,
            }
        )
    return rows


def estimate_table(resolved: Resolved, micro_batches: Sequence[int]) -> Table:
    """Returns a table of the estimates of the fullest stage, one row per micro batch size."""
    table = build_table("micro", "accum", *KINDS, "estimate", "fits", "moment", left=("moment",))
    for row in estimates(resolved, micro_batches):
        table.add_row(
            str(row["micro_batch_size"]),
            str(row["accumulate_grad_batches"]),
            *(shorten_bytes(row[f"{kind}_bytes"]) for kind in KINDS),
            shorten_bytes(row["peak_bytes"]),
            {True: "yes", False: "no", None: "-"}[row["fits"]],
            row["moment"],
        )
    return table


def plan_with_memory(resolved: Resolved) -> dict[str, Any]:
    """Returns `TrainingPlan.to_json` with `memory_bytes` of each stage, the estimate per rank."""
    plan = resolved.plan
    memory = [stage_memory(resolved, stage).peak_bytes for stage in plan.stages]
    data = plan.to_json()
    for row, size in zip(data["stages"], [*[None] * len(plan.passed), *memory], strict=True):
        row["memory_bytes"] = size
    return data
