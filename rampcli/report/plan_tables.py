"""Tables of a plan and the lines below them, and a table of several plans side by side."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from rich.table import Table

from rampcli.batch.loading import reader_of_each_host
from rampcli.batch.quantities import MOST_NAMED, as_written, counted, listed, shorten
from rampcli.batch.throughput import RESTART_KEY, Basis
from rampcli.batch.training_plan import StagePlan, TrainingPlan
from rampcli.config.layers import DEFAULT, stack_of
from rampcli.errors import UsageError, visible
from rampcli.estimate.model_size import model_size
from rampcli.planning.run_plan import Resolved, ResolvedPhase
from rampcli.planning.stage_memory import fullest_stage
from rampcli.report.couplings import coupling_lines
from rampcli.report.memory import memory_cell
from rampcli.report.overlap import overlap_lines
from rampcli.report.phases import by_phase, corpora_cell, data_lines, stage_rates
from rampcli.report.plan_notes import ESTIMATED, UNKNOWN, all_notes, compilation_lines
from rampcli.report.tables import bar, build_table, count, size_text
from rampcli.settings.rl import is_rl

AT_LEAST = ">="
"""Marks a total that leaves out unknown hours."""
BAR_WIDTH = 16
MOST_READERS = 5
MOST_STAGE_ROWS = 60
ROWS_AT_THE_ENDS = 20
"""First and last stages to show of a plan with more than `MOST_STAGE_ROWS` stages."""
CORPORA = "corpora, passes"
RANKS_IN_PHASES = {
    **{"": 20, "from": 19, "dp": 18, "micro": 17, "GPU-hours": 16, "samples": 15, "tokens": 14},
    **{"accum": 13, "GPUs": 12, "bubble": 11, CORPORA: 10, "first lr": 9, "load": 8},
    **{"hosts": 8, "steps": 7, "last lr": 6, "memory": 5, "in tokens": 4},
}
"""`Column.rank` of the columns of a run in phases. Others are never dropped."""
MOST_NODES_SHOWN = 10
"""With more stages than this, a comparison shows the nodes of the first and the last alone."""
PLAN_COLUMNS = (
    *("nodes", "GPUs", "batch", "prompts", "pairs", "micro", "accum", "bubble", "memory"),
    *("samples", "in all", "steps", "tokens", "hours", "GPU-hours"),
)
"""Columns of a comparison, as far as one of its plans has them."""
WITHOUT_PIPELINE = {"bubble": "0.0%"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a plan.

    Attributes:
        cell: text of a stage.
        total: text below the stages.
        rank: columns of the highest rank are dropped first if there is no room; 0 is never dropped.
        is_shown: whether the plan has figures for this column.
    """

    name: str
    cell: Callable[[StagePlan], str]
    total: str = ""
    rank: int = 0
    is_shown: bool = True


def plan_table(resolved: Resolved, *, width: int, bars: bool = True) -> Table:
    """Returns a table of the stages, one per row, and the totals.

    `dp` is the data-parallel size, `accum` the micro batches per rank and step, `from` the samples
    consumed before the stage, `memory` the estimate of its fullest rank, `first lr` and `last lr`
    the learning rate of its first and last step. `length` is that of a sample and `in tokens` the
    size of a batch, if samples differ in length. With several phases, `corpora, passes` has how
    often the run has read each corpus of the stage when it ends.

    Args:
        resolved: configuration and plan.
        width: characters per line. Columns that do not fit are dropped, the bars first.
    """
    columns = plan_columns(resolved)[: None if bars else -1]
    if len(resolved.phases) > 1:
        columns = [replace(one, rank=RANKS_IN_PHASES.get(one.name, 0)) for one in columns]
    while _width(resolved.plan, columns) > width and any(column.rank for column in columns):
        columns.remove(max(columns, key=lambda column: column.rank))
    return _fill(resolved.plan, columns)


def _fill(plan: TrainingPlan, columns: Sequence[Column]) -> Table:
    table = build_table(*(column.name for column in columns), left=("", "phase", CORPORA))
    for stage in _shown_stages(plan):
        table.add_row(*("..." if stage is None else column.cell(stage) for column in columns))
    if any(column.total for column in columns) and len(plan.stages) > 1:
        table.add_row(
            *("total" if index == 0 else column.total for index, column in enumerate(columns)),
            style="bold",
        )
    return table


def _width(plan: TrainingPlan, columns: Sequence[Column]) -> int:
    """Returns the characters of a row: each column's widest cell, and two between columns."""
    stages = [stage for stage in _shown_stages(plan) if stage is not None]
    return (
        sum(
            max(len(text) for text in (column.name, column.total, *map(column.cell, stages))) + 2
            for column in columns
        )
        - 2
    )


def _shown_stages(plan: TrainingPlan) -> list[StagePlan | None]:
    """Returns all stages, or the first and last of very many with None in between."""
    if len(plan.stages) <= MOST_STAGE_ROWS:
        return list(plan.stages)
    return [*plan.stages[:ROWS_AT_THE_ENDS], None, *plan.stages[-ROWS_AT_THE_ENDS:]]


def plan_columns(resolved: Resolved) -> list[Column]:
    """Returns the columns of a plan in order; the last one holds the bars."""
    columns = [*_batch_columns(resolved), *_cost_columns(resolved)]
    return [column for column in columns if column.is_shown]


def _batch_columns(resolved: Resolved) -> list[Column]:
    """Returns the columns of the batch.

    In reinforcement learning, its samples are prompts, and a micro batch is one of pairs.
    """
    plan, totals = resolved.plan, plan_totals(resolved.plan)
    has_pairs, generators = is_rl(resolved.config), resolved.config.rl.rollout_ranks

    def of_pairs(name: str) -> Callable[[StagePlan], str]:
        return lambda stage: str(getattr(resolved.of(stage).pairs(stage), name))

    def passes(stage: StagePlan) -> tuple[str, str]:
        micro, accumulation = resolved.of(stage).passes(stage)
        return str(micro), str(accumulation)

    def processes(stage: StagePlan) -> str:
        return f"{stage.world_size}+{generators}" if generators else str(stage.world_size)

    def tokens(stage: StagePlan) -> str:
        return in_tokens(stage.samples, stage)

    def in_tokens(samples: int | None, stage: StagePlan) -> str:
        return "-" if samples is None else shorten(samples * plan.of(stage).sequence_length)

    def length(stage: StagePlan) -> str:
        return str(plan.of(stage).sequence_length)

    def batch_tokens(stage: StagePlan) -> str:
        return in_tokens(stage.global_batch_size, stage)

    batch, samples = ("prompts", "in all") if has_pairs else ("batch", "samples")
    return [
        Column(
            "phase", lambda stage: resolved.of(stage).name, is_shown=bool(resolved.config.phases)
        ),
        Column("stage", lambda stage: str(stage.stage)),
        Column("length", length, is_shown=not plan.has_one_length),
        Column(batch, lambda stage: str(stage.global_batch_size)),
        Column("in tokens", batch_tokens, is_shown=not (plan.has_one_length or has_pairs)),
        Column("pairs", of_pairs("pairs"), is_shown=has_pairs),
        Column("nodes", lambda stage: str(stage.num_nodes)),
        Column("GPUs", processes),
        Column("dp", lambda stage: str(stage.data_parallel_size), rank=2),
        Column("micro", lambda stage: passes(stage)[0], rank=0 if has_pairs else 5),
        Column("accum", lambda stage: passes(stage)[1]),
        Column("updates", of_pairs("updates"), rank=5, is_shown=has_pairs),
        Column("from", lambda stage: f"{stage.first_sample:,}", rank=4),
        Column(samples, lambda stage: count(stage.samples), totals["samples"]),
        Column("steps", lambda stage: count(stage.steps), totals["steps"]),
        Column("tokens", tokens, totals["tokens"], rank=3, is_shown=not has_pairs),
    ]


def _cost_columns(resolved: Resolved) -> list[Column]:
    """Returns what a stage reads and costs, its learning rates, and a bar as long as its batch.

    The bubble is the share of a step in which the ranks of a pipeline are idle.
    """
    plan, totals = resolved.plan, plan_totals(resolved.plan)
    loads = any(resolved.of(stage).loading(stage) is not None for stage in plan.stages)
    is_timed = plan.clock is not None
    sizes = {
        stage: stage.global_batch_size * plan.of(stage).sequence_length for stage in plan.stages
    }

    def loaded(stage: StagePlan) -> tuple[object, object]:
        return resolved.of(stage).loading(stage) or ("", "")

    def hours(stage: StagePlan, devices: int) -> str:
        if stage.samples is None:
            return "-"
        seconds = plan.stage_s(stage)
        mark = ESTIMATED if plan.basis_of(stage) is Basis.INTERPOLATED else ""
        return UNKNOWN if seconds is None else f"{mark}{as_hours(seconds * devices)}"

    def gpu_hours(stage: StagePlan) -> str:
        return hours(stage, stage.world_size)

    def rate(stage: StagePlan, end: int) -> str:
        value = stage_rates(resolved.of(stage), stage)[end]
        return "-" if value is None else f"{value:.2e}"

    def corpora(stage: StagePlan) -> str:
        return corpora_cell(resolved, stage)

    def bubble(stage: StagePlan) -> str:
        return f"{plan.of(stage).bubble(stage):.1%}"

    def bar_of(stage: StagePlan) -> str:
        return bar(sizes[stage], max(sizes.values()), width=BAR_WIDTH)

    return [
        Column(CORPORA, cache(corpora), is_shown=len(plan.phases) > 1),
        Column("bubble", bubble, rank=1, is_shown=plan.is_piped),
        Column("load", lambda stage: str(loaded(stage)[0]), is_shown=loads),
        Column("hosts", lambda stage: str(loaded(stage)[1]), is_shown=loads),
        Column("hours", lambda stage: hours(stage, 1), totals["hours"], is_shown=is_timed),
        Column("GPU-hours", gpu_hours, totals["GPU-hours"], rank=1, is_shown=is_timed),
        Column("memory", cache(lambda stage: memory_cell(resolved.of(stage), stage)), rank=6),
        Column("first lr", lambda stage: rate(stage, 0), rank=8),
        Column("last lr", lambda stage: rate(stage, 1), rank=7),
        Column("", bar_of, rank=9),
    ]


def total_hours(plans: Sequence[TrainingPlan], known_s: Sequence[float | None]) -> str:
    """Returns the hours of plans together, from the seconds that are known of each.

    They have the mark of interpolated hours. If some are unknown, the rest is marked as a minimum.
    """
    found = [seconds for seconds in known_s if seconds is not None]
    bases = {plan.basis_of(stage) for plan in plans for stage in plan.stages}
    if not found:
        return UNKNOWN
    mark = AT_LEAST if bases & {Basis.UNKNOWN, None} else ""
    mark += ESTIMATED if Basis.INTERPOLATED in bases else ""
    return f"{mark}{as_hours(sum(found))}"


def plan_totals(plan: TrainingPlan) -> dict[str, str]:
    """Returns the sums over a plan by column, or `-` if a run has no end or no throughput.

    Hours include restarts; GPU-hours do not.
    """
    has_hours = plan.clock is not None and plan.end_sample is not None
    gpu_s = [
        None if seconds is None else seconds * stage.world_size
        for stage, seconds in zip(plan.stages, map(plan.stage_s, plan.stages), strict=True)
    ]
    return {
        "samples": count(plan.end_sample),
        "steps": count(plan.end_step),
        "tokens": "-" if plan.end_tokens is None else shorten(plan.end_tokens),
        "hours": total_hours([plan], [plan.known_s()]) if has_hours else "-",
        "GPU-hours": total_hours([plan], gpu_s) if has_hours else "-",
    }


def plan_summary(resolved: Resolved) -> list[str]:
    """Returns the lines below the table of a plan: totals, source of the hours, and notes."""
    plan, config = resolved.plan, resolved.config
    lines, steps = [*by_phase(resolved, _pair_lines)], counted(plan.end_step or 0, "step")
    place = f"run directory {visible(str(resolved.run_dir))}"
    if plan.end_sample is not None and lines:
        pairs = sum(
            (one.plan.samples or 0) * (one.config.rl.generations_per_prompt or 0)
            for one in resolved.phases
        )
        lines.append(f"{counted(plan.end_sample, 'prompt')}, {pairs:,} pairs, {steps}; {place}")
    elif plan.end_sample is not None:
        tokens = counted(plan.tokens_at(plan.end_sample), "token")
        lines.append(f"{counted(plan.end_sample, 'sample')}, {steps}, {tokens}; {place}")
    else:
        lines.append(f"a run without end; {place}")
    if plan.clock is not None:
        restarts = 0 if plan.end_sample is None or plan.known_s() is None else plan.restarts()
        cost = f"{counted(restarts, 'restart')} of {plan.clock.restart_s:g} s"
        set_by = stack_of(config).entry(RESTART_KEY).place
        cost += "" if set_by == DEFAULT else f" ({set_by})"
        included = f"; the total counts {cost}" if restarts else ""
        bases = by_phase(resolved, _basis_of_hours)
        lines.append(f"hours: {'; '.join(bases)}{included}{_unknown_hours(plan)}")
    lines.append(f"model: {size_text(model_size(config), tokens=resolved.tokens)}")
    lines += coupling_lines(resolved)
    lines += by_phase(resolved, compilation_lines)
    lines += data_lines(resolved)
    lines += by_phase(resolved, _describe_reading)
    lines += [line for one in resolved.retunings for line in one.lines()]
    return [*lines, *(f"note: {note}" for note in all_notes(resolved))]


def _pair_lines(phase: ResolvedPhase) -> list[str]:
    """Returns how the pairs of the largest stage are split; nothing without generations."""
    stage = max(phase.plan.stages, key=lambda stage: stage.global_batch_size)
    batch = phase.pairs(stage)
    if batch is None:
        return []
    groups, rest = divmod(batch.micro_batch_size, batch.generations)
    held = (
        f"a part of {batch.micro_batch_size} of a prompt's {batch.generations} generations"
        if rest
        else f"{groups} whole group{'s' if groups > 1 else ''} of {batch.generations} generations"
    )
    return [str(batch), f"each micro batch holds {held}", *overlap_lines(phase, batch)]


def _unknown_hours(plan: TrainingPlan) -> str:
    """Returns what the total of the hours leaves out, if that is not all."""
    unknown = [
        str(stage.stage) for stage in plan.stages if plan.basis_of(stage) in (Basis.UNKNOWN, None)
    ]
    if not unknown or plan.end_sample is None or plan.known_s() is None:
        return ""
    stages = f"{'stages' if len(unknown) > 1 else 'stage'} {listed(unknown, most=MOST_NAMED)}"
    return f"; the total is a minimum: the hours of {stages} are unknown"


def _basis_of_hours(phase: ResolvedPhase) -> list[str]:
    """Returns what the hours of a phase rest on."""
    plan = phase.plan
    if plan.clock is None:
        return []
    bubble = ""
    if plan.is_piped and plan.clock.throughput.has_bubble:
        bubble = ", which contains the bubble of its pipeline"
    elif plan.is_piped:
        bubble = ", plus the bubble of the pipeline"
    return [f"{plan.clock.throughput.basis}{bubble}"]


def _describe_reading(phase: ResolvedPhase) -> list[str]:
    """Returns a line about which hosts read data for which in the largest stage.

    It counts samples as the column `load`, but without those read for other hosts: at least one per
    device and pass. The list is empty without `data.expansion_factor_real_data`.
    """
    stage = max(phase.plan.stages, key=lambda stage: stage.num_nodes)
    factor, loading = phase.config.data.expansion_factor_real_data, phase.loading(stage)
    if factor is None or loading is None:
        return []
    loaded = loading[0] / as_written(max(factor, 1.0))
    also = ", one per device and pass" if loaded > stage.global_batch_size else ""
    readers = reader_of_each_host(stage.num_nodes, factor)
    groups = [
        [host for host, reader in enumerate(readers) if reader == leader]
        for leader in sorted(set(readers))
    ]
    per_host = float(loaded / stage.num_nodes)
    if len(groups) == stage.num_nodes:
        return [
            f"reading: each of {stage.num_nodes} hosts reads its own {per_host:g} samples of a step"
            f"{also}{'; a factor below 1 changes nothing' if factor < 1 else ''}"
        ]
    named = [
        f"host {group[0]} for {group[0]}-{group[-1]}"
        if len(group) > 1
        else f"host {group[0]} for itself"
        for group in groups
    ]
    shown = named if len(named) <= MOST_READERS else [*named[: MOST_READERS - 1], "...", named[-1]]
    most = max(map(len, groups)) * per_host
    return [
        f"reading: {len(groups)} of {stage.num_nodes} hosts read,"
        f" up to {most:g} samples of a step each{also}: {', '.join(shown)}"
    ]


def as_hours(seconds: float | None) -> str:
    """Returns a duration in hours, or "-" if it is unknown."""
    if seconds is None:
        return "-"
    hours = seconds / 3600
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.1f}" if hours >= 1 else f"{hours:.3f}"


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
    columns = [*(name for name in PLAN_COLUMNS if name in known), *further]
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
    fullest, nodes = fullest_stage(resolved), [str(stage.num_nodes) for stage in plan.stages]
    if len(nodes) > MOST_NODES_SHOWN:
        nodes = [nodes[0], "...", nodes[-1]]
    last, shown = (
        plan.stages[-1],
        [one for one in plan_columns(resolved) if one.name in PLAN_COLUMNS],
    )
    return {column.name: column.total or column.cell(last) for column in shown} | {
        "nodes": " ".join(nodes),
        "GPUs": str(plan.largest_world_size),
        "memory": memory_cell(resolved.of(fullest), fullest, limit=True),
    }
