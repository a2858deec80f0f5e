"""What the plan chose for settings that were left to it, and what the ways cost."""

from dataclasses import asdict
from typing import Any

from rampcli.planning.choices import is_chosen_by_plan
from rampcli.planning.compilation import compilation_of
from rampcli.planning.reduction import ways_to_reduce
from rampcli.planning.run_plan import ResolvedPhase
from rampcli.planning.stage_memory import shorten_bytes
from rampcli.report.tables import duration
from rampcli.settings.trainer import TrainerConfig


def reduction_notes(phase: ResolvedPhase) -> list[str]:
    """Returns a note if the plan reduces gradients after each micro batch to save memory."""
    is_each = phase.config.trainer.accumulate_reduce == "each"
    if not is_each or not is_chosen_by_plan(phase.config, TrainerConfig.accumulate_reduce):
        return []
    costs = costs_of(TrainerConfig.accumulate_reduce, phase)
    assert costs is not None  # otherwise, the plan does not choose `each`
    each, last = (_reduction_text(**costs[name]) for name in ("each", "last"))
    return [f"{TrainerConfig.accumulate_reduce}=each, which the plan chose: {each}; last: {last}"]


def compilation_lines(phase: ResolvedPhase) -> list[str]:
    """Returns what compilation takes and saves, if the plan chose it."""
    if not phase.config.trainer.compile or not is_chosen_by_plan(
        phase.config, TrainerConfig.compile
    ):
        return []
    return [
        f"{TrainerConfig.compile}: the plan chose true; {text}"
        for text in costs_text(TrainerConfig.compile, costs_of(TrainerConfig.compile, phase))
    ]


def costs_of(key: str, phase: ResolvedPhase) -> dict[str, Any] | None:
    """Returns the figures from which the plan chooses a setting, or None if there are none.

    For `trainer.accumulate_reduce`, it is `memory_bytes` and `sent_bytes` by value. For
    `trainer.compile`, it is `run_s`, `compile_s` and `saved_s` (see `Compilation`).
    """
    if key == TrainerConfig.accumulate_reduce:
        ways = ways_to_reduce(phase)
        return None if ways is None else {name: asdict(way) for name, way in ways.items()}
    if key == TrainerConfig.compile:
        compilation = compilation_of(phase)
        return None if compilation is None else asdict(compilation)
    return None


def costs_text(key: str, costs: dict[str, Any] | None) -> list[str]:
    """Returns lines that say the costs of `costs_of` to people."""
    if costs is None:
        return []
    if key == TrainerConfig.accumulate_reduce:
        return [f"{value}: {_reduction_text(**way)}" for value, way in costs.items()]
    run_s, saved_s = costs["run_s"], costs["saved_s"]
    saved = (
        "pays in a run without an end"
        if run_s is None
        else f"saves ~{duration(saved_s)} of ~{duration(run_s)}"
    )
    return [f"compiling takes ~{duration(costs['compile_s'])} and {saved}"]


def _reduction_text(*, memory_bytes: int, sent_bytes: int) -> str:
    memory, sent = shorten_bytes(memory_bytes), shorten_bytes(sent_bytes)
    return f"~{memory} per rank, {sent} of gradients sent per step"
