"""A table of several plans side by side (`rampcli plan --what-if`)."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from rampcli.errors import UsageError
from rampcli.planning.run_plan import Resolved
from rampcli.planning.stage_memory import fullest_stage
from rampcli.report.memory import memory_cell
from rampcli.report.plan_tables import columns_of
from rampcli.report.tables import build_table

MOST_NODES_SHOWN = 10
"""With more stages than this, a comparison shows the nodes of the first and the last alone."""
COLUMNS = (
    *("nodes", "GPUs", "batch", "prompts", "pairs", "micro", "accum", "bubble", "memory"),
    *("samples", "in all", "steps", "tokens", "hours", "GPU-hours"),
)
"""Columns of a comparison, as far as one of its plans has them."""
WITHOUT_PIPELINE = {"bubble": "0.0%"}


def comparison_table(
    variants: Sequence[tuple[str, Resolved | UsageError]],
    *,
    more: Mapping[str, Mapping[str, str]] | None = None,
) -> Table:
    """Returns a table of plans, one per row. A variant that does not fit has no figures.

    The micro batch is shown if it differs.

    Args:
        more: further columns at the end, by the name of the variant and that of the column.
    """
    added = more or {}
    cells = {
        name: _cells(found) | dict(added.get(name, {}))
        for name, found in variants
        if isinstance(found, Resolved)
    }
    known = {"nodes", "hours", "GPU-hours"}.union(*cells.values())
    if len({one["micro"] for one in cells.values()}) < 2:
        known.discard("micro")
    further = dict.fromkeys(column for one in added.values() for column in one)
    columns = [*(name for name in COLUMNS if name in known), *further]
    table = build_table("", *columns, left=("", "nodes"))
    for name, _ in variants:
        if name in cells:
            figures = WITHOUT_PIPELINE | cells[name]
            table.add_row(name, *(figures.get(column, "-") for column in columns))
        else:
            table.add_row(name, "does not fit")
    return table


def _cells(resolved: Resolved) -> dict[str, str]:
    """Returns the totals of a plan, or the figures of its last stage, by column."""
    plan = resolved.plan
    fullest = fullest_stage(resolved)
    last, shown = plan.stages[-1], [one for one in columns_of(resolved) if one.name in COLUMNS]
    return {column.name: column.total or column.cell(last) for column in shown} | {
        "nodes": _list_nodes([stage.num_nodes for stage in plan.stages]),
        "GPUs": str(plan.largest_world_size),
        "memory": memory_cell(resolved.of(fullest), fullest, limit=True),
    }


def _list_nodes(nodes: Sequence[int]) -> str:
    """Returns the nodes of all stages, or of the first and the last of many."""
    if len(nodes) > MOST_NODES_SHOWN:
        return f"{nodes[0]} ... {nodes[-1]}"
    return " ".join(map(str, nodes))
