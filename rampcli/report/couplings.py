"""How the optimiser follows the batch, in lines of a plan and as figures of its stages."""

from typing import Any

from rampcli.batch.quantities import listed
from rampcli.planning.run_plan import Resolved

MOST_SHOWN = 10
"""Most stages whose values a line shows."""


def coupled_stages(resolved: Resolved) -> list[dict[str, Any]]:
    """Returns the figures of each stage of a plan, also of those in `passed`.

    `lr_factor` is the factor by which the batch or the stage scales the learning rate. `beta2` and
    `weight_decay` are None if they do not follow the batch.
    """
    rate, couplings = resolved.learning_rate(), resolved.couplings()
    rows = []
    for stage in (*resolved.plan.passed, *resolved.plan.stages):
        size = stage.global_batch_size
        end = stage.first_sample + size
        values = couplings.at(rate, end, global_batch_size=size)
        factor = rate.factor_at(end, global_batch_size=size)
        rows.append(
            {"lr_factor": factor, "beta2": values.beta2, "weight_decay": values.weight_decay}
        )
    return rows


def coupling_lines(resolved: Resolved) -> list[str]:
    """Returns a line for each value that follows the batch: what every stage has."""
    schedule, rows = resolved.config.schedule, coupled_stages(resolved)
    is_scaled = schedule.batch_coupling != "none" or schedule.lr_factors is not None
    return [
        f"{name} by stage: {listed([f'{row[figure]:{form}}' for row in rows], most=MOST_SHOWN)}"
        for name, figure, form, is_shown in (
            ("factor of the learning rate", "lr_factor", ".3g", is_scaled),
            ("beta2", "beta2", ".6g", rows[0]["beta2"] is not None),
            ("weight decay", "weight_decay", ".3g", rows[0]["weight_decay"] is not None),
        )
        if is_shown
    ]
