"""The memory of a plan's stages, estimated: cells, notes, tables and plain data."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rich.table import Table

from rampcli.batch.plan import MICRO_KEY
from rampcli.batch.quantities import listed
from rampcli.batch.training_plan import StagePlan
from rampcli.estimate.memory import MEMORY_KINDS, estimate_memory
from rampcli.planning.out_of_memory import changes_that_fit
from rampcli.planning.run_plan import Resolved, ResolvedPhase
from rampcli.planning.stage_memory import (
    device_memory_bytes,
    fullest_stage,
    shorten_bytes,
    stage_memory,
    usable_bytes,
)
from rampcli.report.tables import table_of
from rampcli.settings.phase_keys import phase_key
from rampcli.settings.trainer import TrainerConfig


def memory_cell(phase: ResolvedPhase, stage: StagePlan, *, limit: bool = False) -> str:
    """Returns the estimate of a stage's fullest rank as text; the tilde marks estimates.

    With `limit`, an estimate that does not fit the device is followed by what is usable there.
    """
    peak, device = stage_memory(phase, stage).peak_bytes, device_memory_bytes(phase.config)
    usable = None if device is None else usable_bytes(phase.config, device)
    over = f" > {shorten_bytes(usable)}" if limit and usable is not None and peak > usable else ""
    return f"~{shorten_bytes(peak)}{over}"


def memory_notes(phase: ResolvedPhase) -> list[str]:
    """Returns a note if the estimate of a stage does not fit the device, with what fits."""
    config = phase.config
    memory_bytes = device_memory_bytes(config)
    if memory_bytes is None:
        return []
    usable = usable_bytes(config, memory_bytes)
    peaks = {stage: stage_memory(phase, stage).peak_bytes for stage in phase.plan.stages}
    over = [stage.stage for stage, peak in peaks.items() if peak > usable]
    if not over:
        return []
    stages = f"stage {over[0]}"
    if len(over) > 1:
        is_range = len(over) == over[-1] - over[0] + 1
        stages = f"stages {over[0]} to {over[-1]}" if is_range else f"{len(over)} stages"
    device = "process" if config.trainer.accelerator == "cpu" else "GPU"
    return [
        f"an estimated {shorten_bytes(max(peaks.values()))} per {device} in {stages}, where"
        f" {shorten_bytes(usable)} of {shorten_bytes(memory_bytes)} are usable;"
        f" {_memory_remedy(phase, usable)}"
    ]


def _memory_remedy(phase: ResolvedPhase, usable: int) -> str:
    """Returns what makes the stages of a phase fit. Changes of one with a name are not tried."""
    if phase.plan.name is not None:
        keys = (MICRO_KEY, TrainerConfig.activation_checkpointing)
        words = listed([phase_key(phase.name, key) for key in keys])
        return f"{words} can lower it (which values suffice was not tried)"
    if changes := changes_that_fit(phase, usable):
        return f"fits with {', or '.join(map(str, changes))}"
    return "smaller micro batches, recomputed activations and more shards do not suffice"


def estimates(resolved: Resolved, micro_batches: Sequence[int]) -> list[dict[str, Any]]:
    """Returns the estimates of the fullest stage with several micro batch sizes, as plain data.

    Each has `stage`, `micro_batch_size`, `accumulate_grad_batches` (rounded up), the bytes of each
    kind of memory (`weights_bytes` and so on), their sum `peak_bytes`, `moment`,
    `device_memory_bytes` (None if unknown) and `fits` (None if unknown).
    """
    stage, memory_bytes = fullest_stage(resolved), device_memory_bytes(resolved.config)
    rows = []
    for size in micro_batches:
        accumulated = -(-stage.global_batch_size // (stage.data_parallel_size * size))
        estimate = estimate_memory(
            resolved.config,
            data_parallel_size=stage.data_parallel_size,
            micro_batch_size=size,
            accumulate_grad_batches=accumulated,
        )
        fits = None
        if memory_bytes is not None:
            fits = estimate.peak_bytes <= usable_bytes(resolved.config, memory_bytes)
        rows.append(
            {
                "stage": stage.stage,
                "micro_batch_size": size,
                "accumulate_grad_batches": accumulated,
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

    def size_of(name: str, row: Mapping[str, Any]) -> str:
        return shorten_bytes(row[f"{name}_bytes"])

    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "micro": lambda row: str(row["micro_batch_size"]),
        "accum": lambda row: str(row["accumulate_grad_batches"]),
        **{kind: partial(size_of, kind) for kind in MEMORY_KINDS},
        "estimate": partial(size_of, "peak"),
        "fits": lambda row: {True: "yes", False: "no", None: "-"}[row["fits"]],
        "moment": lambda row: str(row["moment"]),
    }
    return table_of(estimates(resolved, micro_batches), columns, left=("moment",))
