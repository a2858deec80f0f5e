"""A table of several plans side by side (`rampcli plan --what-if`)."""

from collections.abc import Callable, Sequence

from rich.table import Table

from rampcli.batch.training_plan import StagePlan
from rampcli.config.rl import is_rl
from rampcli.errors import UsageError
from rampcli.planning.run_plan import Resolved
from rampcli.planning.stage_memory import fullest_stage
from rampcli.report.memory import memory_cell
from rampcli.report.plan_tables import plan_totals
from rampcli.report.tables import build_table

MOST_NODES_SHOWN = 10
"""With more stages than this, a comparison shows the nodes of the first and the last alone."""


def comparison_table(variants: Sequence[tuple[str, Resolved | UsageError]]) -> Table:
    """Returns a table of plans, one per row. A variant that does not fit has no figures."""
    columns = _compared([found for _, found in variants if isinstance(found, Resolved)])
    table = build_table("", *columns, left=("", "nodes"))
    for name, resolved in variants:
        if isinstance(resolved, UsageError):
            table.add_row(name, "does not fit")
        else:
            table.add_row(name, *(cell(resolved) for cell in columns.values()))
    return table


def _compared(plans: Sequence[Resolved]) -> dict[str, Callable[[Resolved], str]]:
    """Returns the columns of a comparison by name.

    They include the micro batch if it differs, the bubble if there is a pipeline, and the pairs of
    reinforcement learning, whose samples are prompts.
    """

    def last(resolved: Resolved) -> StagePlan:
        return resolved.plan.stages[-1]

    def total(name: str) -> Callable[[Resolved], str]:
        return lambda one: plan_totals(one.plan)[name]

    columns: dict[str, Callable[[Resolved], str]] = {
        "nodes": lambda one: _list_nodes([stage.num_nodes for stage in one.plan.stages]),
        "GPUs": lambda one: str(one.plan.largest_world_size),
        "batch": lambda one: str(last(one).global_batch_size),
        "pairs": lambda one: str(getattr(one.pairs(last(one)), "pairs", "-")),
        "micro": lambda one: str(one.passes(last(one))[0]),
        "accum": lambda one: str(one.passes(last(one))[1]),
        "bubble": lambda one: f"{one.plan.bubble(last(one)):.1%}",
        "memory": lambda one: memory_cell(one, fullest_stage(one)),
        **{name: total(name) for name in ("samples", "steps", "tokens", "hours", "GPU-hours")},
    }
    if {is_rl(one.config) for one in plans} == {True}:
        names = {"batch": "prompts", "samples": "in all"}
        columns = {names.get(name, name): cell for name, cell in columns.items()}
    if len({columns["micro"](one) for one in plans}) < 2:
        del columns["micro"]
    del columns["tokens" if any(is_rl(one.config) for one in plans) else "pairs"]
    if all(one.plan.fleet.parallel.pipeline == 1 for one in plans):
        del columns["bubble"]
    return columns


def _list_nodes(nodes: Sequence[int]) -> str:
    """Returns the nodes of all stages, or of the first and the last of many."""
    if len(nodes) > MOST_NODES_SHOWN:
        return f"{nodes[0]} ... {nodes[-1]}"
    return " ".join(map(str, nodes))
