"""How the optimiser follows the batch, in lines of a plan and as figures of its stages."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rampcli.batch.quantities import listed
from rampcli.batch.training_plan import TrainingPlan
from rampcli.planning.run_plan import Resolved, ResolvedPhase
from rampcli.settings.optim import OptimConfig, ScheduleConfig

MOST_STAGE_VALUES = 10
"""Most stages whose values a line or a cell shows."""
COUPLED = {
    "lr_factor": ("factor of the learning rate", "lr factor", 3),
    "beta2": ("beta2", "beta2", 6),
    "weight_decay": ("weight decay", "weight decay", 3),
}
"""Figures of a stage: their names in lines and in columns, and the digits of their numbers."""
COMPARED_DIGITS = 9
"""Digits in which numbers are compared."""


def coupled_stages(resolved: Resolved) -> list[dict[str, Any]]:
    """Returns the figures of each stage of a plan, also of those in `passed`.

    `lr_factor` is the factor by which the batch or the stage scales the learning rate. `beta2` and
    `weight_decay` are None if they do not follow the batch.
    """
    return [row for phase in resolved.phases for row in _coupled_stages_of(phase)]


def _coupled_stages_of(phase: ResolvedPhase) -> list[dict[str, Any]]:
    rows, rate, couplings = [], phase.rate, phase.couplings()
    for stage in phase.plan.extents:
        size = stage.global_batch_size
        end = stage.first_sample + size
        values = couplings.at(rate, end, global_batch_size=size)
        factor = rate.factor_at(end, global_batch_size=size)
        rows.append(
            {"lr_factor": factor, "beta2": values.beta2, "weight_decay": values.weight_decay}
        )
    return rows


def _in_effect(resolved: Resolved, name: str) -> list[float]:
    """Returns a figure of each stage: that of the settings if its batch does not change it."""
    stages = zip(coupled_stages(resolved), resolved.plan.extents, strict=True)
    return [
        getattr(resolved.of(stage).config.optim, name) if row[name] is None else row[name]
        for row, stage in stages
    ]


def compared_stages(resolved: Resolved) -> list[dict[str, float | None]]:
    """Returns `coupled_stages` with nine digits, and None for values that never change."""
    return _compared(coupled_stages(resolved), resolved.config.optim)


def _compared(
    rows: Sequence[Mapping[str, Any]], optim: OptimConfig
) -> list[dict[str, float | None]]:
    fixed = {"beta2": _digits(optim.beta2), "weight_decay": _digits(optim.weight_decay)}
    rounded: list[dict[str, float | None]] = [
        {name: None if value is None else _digits(value) for name, value in row.items()}
        for row in rows
    ]
    for name, value in fixed.items():
        if all(row[name] in (None, value) for row in rounded):
            rounded = [{**row, name: None} for row in rounded]
    return rounded


def _digits(value: float) -> float:
    """Returns a value without the noise of its last digits."""
    return float(f"{value:.{COMPARED_DIGITS}g}")


def coupling_lines(resolved: Resolved) -> list[str]:
    """Returns a line for each value that follows the batch: what every stage has."""
    rows = coupled_stages(resolved)
    schedules = [phase.config.schedule for phase in resolved.phases]
    is_shown = {name: any(row[name] is not None for row in rows) for name in COUPLED}
    is_shown["lr_factor"] = any(
        one.batch_coupling != "none" or one.lr_factors is not None for one in schedules
    )
    shown = {name: facts for name, facts in COUPLED.items() if is_shown[name]}
    texts = {
        name: [f"{value:.{digits}g}" for value in _in_effect(resolved, name)]
        for name, (_, _, digits) in shown.items()
    }
    return [
        f"{title} by stage: {listed(texts[name], most=MOST_STAGE_VALUES)}"
        for name, (title, _, _) in shown.items()
    ]


def coupling_notes(phase: ResolvedPhase, plan: TrainingPlan) -> Iterator[str]:
    """Yields notes on couplings of a phase that change nothing, or not every parameter.

    Args:
        plan: of the run.
    """
    schedule, optim = phase.config.schedule, phase.config.optim
    couplings = {
        ScheduleConfig.batch_coupling: schedule.batch_coupling,
        ScheduleConfig.beta2_coupling: schedule.beta2_coupling,
        ScheduleConfig.weight_decay_coupling: schedule.weight_decay_coupling,
    }
    chosen = {key: f"{key}={value}" for key, value in couplings.items() if value not in ("none", 0)}
    # Of all batches, also of those after the end of the run.
    sizes = {
        stage.global_batch_size * (1 if plan.has_one_length else plan.of(stage).sequence_length)
        for stage in plan.ramp.stages
    }
    if chosen and len(sizes) == 1:
        unit = "" if plan.has_one_length else " tokens"
        change = "changes" if len(chosen) == 1 else "change"
        yield (
            f"every batch has the size {sizes.pop()}{unit}, so {listed([*chosen.values()])}"
            f" {change} nothing within the run"
        )
        return
    for key, field in (
        (ScheduleConfig.beta2_coupling, "beta2"),
        (ScheduleConfig.weight_decay_coupling, "weight_decay"),
    ):
        if key in chosen and getattr(optim, field) == 0:
            yield f"{chosen.pop(key)} changes nothing: optim.{field} is 0"
    compared = _compared(_coupled_stages_of(phase), optim)
    if ScheduleConfig.weight_decay_coupling in chosen and compared[0]["weight_decay"] is None:
        yield (
            f"{chosen.pop(ScheduleConfig.weight_decay_coupling)} changes nothing: the learning"
            " rate is scaled as the batch is"
        )
    if optim.optimizer == "muon" and ScheduleConfig.beta2_coupling in chosen:
        yield (
            f"{chosen[ScheduleConfig.beta2_coupling]} is for the parameters that AdamW trains;"
            " Muon's momentum stays"
        )
    if optim.optimizer == "muon" and ScheduleConfig.weight_decay_coupling in chosen:
        yield (
            f"{chosen[ScheduleConfig.weight_decay_coupling]} is a rule of AdamW (arXiv"
            " 2505.13738); it sets the weight decay"
            " of Muon's matrices, too"
        )


def differing_couplings(plans: Mapping[str, Resolved]) -> dict[str, dict[str, str]]:
    """Returns cells with what the stages of each plan have, by plan and column.

    A column in which the plans do not differ is left out. Numbers that differ look different: they
    have more digits if need be, and the middle of many stages is left out only if it tells nothing.
    """
    found: dict[str, dict[str, str]] = {plan: {} for plan in plans}
    for name, (_, column, digits) in COUPLED.items():
        numbers = {plan: _numbers(resolved, name) for plan, resolved in plans.items()}
        distinct = len(set(numbers.values()))
        if distinct < 2:
            continue
        tries = [
            (n, most)
            for most in (MOST_STAGE_VALUES, None)
            for n in range(digits, COMPARED_DIGITS + 1)
        ]
        for n, most in tries:
            texts = {plan: _cell(values, n, most) for plan, values in numbers.items()}
            if len(set(texts.values())) == distinct:
                break
        for plan, text in texts.items():
            found[plan][column] = text
    return found


def _numbers(resolved: Resolved, name: str) -> tuple[float, ...]:
    """Returns the figures of all stages, or one if they are the same."""
    values = [_digits(value) for value in _in_effect(resolved, name)]
    return (values[0],) if len(set(values)) == 1 else tuple(values)


def _cell(values: tuple[float, ...], digits: int, most: int | None) -> str:
    """Returns values as text: the ends alone of more than `most`."""
    texts = [f"{value:.{digits}g}" for value in values]
    if len(set(texts)) == 1:
        return texts[0]
    if most is not None and len(texts) > most:
        texts = [texts[0], "...", texts[-1]]
    return " ".join(texts)
