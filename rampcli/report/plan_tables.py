"""Tables of a plan: its stages, its totals, and several plans side by side."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.table import Table

from rampcli.batch.maxtext import reading_hosts
from rampcli.batch.quantities import shorten
from rampcli.batch.training_plan import StagePlan, TrainingPlan
from rampcli.config.resolve import Resolved
from rampcli.errors import UsageError
from rampcli.report.tables import build_table

BAR_WIDTH = 16
MOST_READERS = 5
MOST_ROWS = 60
ROWS_AT_THE_ENDS = 20
"""Of more stages than `MOST_ROWS`, this many of the first and of the last are shown."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the plan: its cells, the total below them, and how soon it is left out where there is no room (0: never)."""

    name: str
    cell: Callable[[StagePlan], str]
    total: str = ""
    rank: int = 0


def plan_table(resolved: Resolved, *, width: int, bars: bool = True) -> Table:
    """The stages of a plan, one a row, and the totals.

    `dp` is the data-parallel size, `accum` the micro batches per rank and step, `from` the samples consumed before the stage, `lr` the
    learning rate of the stage's first and last step. Columns that do not fit into `width` characters are left out, the bars first.
    """
    columns = _columns(resolved)[: None if bars else -1]
    while _width(resolved.plan, columns) > width and any(column.rank for column in columns):
        columns.remove(max(columns, key=lambda column: column.rank))
    return _fill(resolved.plan, columns)


def _fill(plan: TrainingPlan, columns: Sequence[Column]) -> Table:
    table = build_table(*(column.name for column in columns))
    for stage in _shown_stages(plan):
        table.add_row(*("..." if stage is None else column.cell(stage) for column in columns))
    if any(column.total for column in columns) and len(plan.stages) > 1:
        table.add_row(
            *("total" if index == 0 else column.total for index, column in enumerate(columns)),
            style="bold",
        )
    return table


def _width(plan: TrainingPlan, columns: Sequence[Column]) -> int:
    """Characters of a row: every column as wide as its widest cell, and two blanks between columns."""
    stages = [stage for stage in _shown_stages(plan) if stage is not None]
    return (
        sum(
            max(len(text) for text in (column.name, column.total, *map(column.cell, stages))) + 2
            for column in columns
        )
        - 2
    )


def _shown_stages(plan: TrainingPlan) -> list[StagePlan | None]:
    """All stages; of very many the first and the last, with None for those between."""
    if len(plan.stages) <= MOST_ROWS:
        return list(plan.stages)
    return [*plan.stages[:ROWS_AT_THE_ENDS], None, *plan.stages[-ROWS_AT_THE_ENDS:]]


def _columns(resolved: Resolved) -> list[Column]:
    plan = resolved.plan
    rate = resolved.learning_rate()
    totals = plan_totals(plan)
    largest = max(stage.global_batch_size for stage in plan.stages)

    def rate_of(stage: StagePlan, consumed_samples: int | None) -> str:
        return (
            "-"
            if consumed_samples is None
            else f"{rate.at(consumed_samples, global_batch_size=stage.global_batch_size):.2e}"
        )

    def hours(stage: StagePlan, devices: int) -> str:
        seconds = plan.stage_s(stage)
        return "-" if seconds is None else _hours(seconds * devices)

    columns = [
        Column("stage", lambda stage: str(stage.stage)),
        Column("batch", lambda stage: str(stage.global_batch_size)),
        Column("nodes", lambda stage: str(stage.num_nodes)),
        Column("GPUs", lambda stage: str(stage.world_size)),
        Column("dp", lambda stage: str(stage.data_parallel_size), rank=2),
        Column("micro", lambda stage: str(stage.micro_batch_size), rank=5),
        Column("accum", lambda stage: str(stage.accumulate_grad_batches)),
        Column("from", lambda stage: f"{stage.first_sample:,}", rank=4),
        Column("samples", lambda stage: _count(stage.samples), totals.samples),
        Column("steps", lambda stage: _count(stage.steps), totals.steps),
        Column("tokens", lambda stage: _tokens(stage.samples, plan), totals.tokens, rank=3),
    ]
    if resolved.loading(plan.stages[0]) is not None:
        columns += [
            Column(
                "load",
                lambda stage: str(
                    loaded[0].global_batch_to_load if (loaded := resolved.loading(stage)) else ""
                ),
            ),
            Column(
                "hosts", lambda stage: str(loaded[1] if (loaded := resolved.loading(stage)) else "")
            ),
        ]
    if plan.clock is not None:
        columns += [
            Column("hours", lambda stage: hours(stage, 1), totals.hours),
            Column(
                "GPU-hours", lambda stage: hours(stage, stage.world_size), totals.gpu_hours, rank=1
            ),
        ]
    return [
        *columns,
        Column(
            "first lr",
            lambda stage: rate_of(stage, stage.first_sample + stage.global_batch_size),
            rank=7,
        ),
        Column("last lr", lambda stage: rate_of(stage, stage.end_sample), rank=6),
        Column("", lambda stage: _bar(stage.global_batch_size, largest), rank=8),
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """Sums over a plan, as text; `-` where the run has no end or no throughput is known."""

    samples: str
    steps: str
    tokens: str
    hours: str
    gpu_hours: str


def plan_totals(plan: TrainingPlan) -> Totals:
    """The sums over a plan; hours with the restarts."""
    seconds = [plan.stage_s(stage) for stage in plan.stages]
    known = [second for second in seconds if second is not None]
    complete = len(known) == len(seconds) and plan.clock is not None
    restart_s = plan.restarts() * plan.clock.restart_s if plan.clock else 0.0
    gpu_s = sum(
        second * stage.world_size for second, stage in zip(known, plan.stages, strict=False)
    )
    return Totals(
        samples=_count(plan.end_sample),
        steps=_count(plan.end_step),
        tokens=_tokens(plan.end_sample, plan),
        hours=_hours(sum(known) + restart_s) if complete else "-",
        gpu_hours=_hours(gpu_s) if complete else "-",
    )


def plan_summary(resolved: Resolved) -> list[str]:
    """What stands above and below the table of a plan: totals, how hours are known, and notes."""
    plan, config = resolved.plan, resolved.config
    lines = []
    if plan.end_sample is not None:
        tokens = plan.end_sample * plan.sequence_length
        lines.append(
            f"{plan.end_sample:,} samples, {plan.end_step:,} steps, {tokens:,} tokens; run directory {resolved.run_dir}"
        )
    else:
        lines.append(f"a run without end; run directory {resolved.run_dir}")
    if plan.clock is not None:
        restarts = 0 if plan.end_sample is None else plan.restarts()
        took = (
            f"; the total counts {restarts} restart{'s' if restarts != 1 else ''} of {plan.clock.restart_s:g} s"
            if restarts
            else ""
        )
        lines.append(f"hours: {plan.clock.throughput.basis}{took}")
    lines += _who_reads(resolved)
    if plan.passed:
        lines.append(
            f"note: stages 0 to {len(plan.passed) - 1} are behind and do not fit today's nodes; they are not shown"
        )
    if config.parallel.num_pipeline_microbatches is not None:
        microbatches = config.parallel.num_pipeline_microbatches
        micro = plan.stages[-1].micro_batch_size
        lines.append(
            f"note: the pipeline takes a rank's micro batch of {micro} samples in {microbatches} parts of {micro // microbatches}"
        )
    if config.rampup.node_policy == "best" and plan.clock is None:
        lines.append(
            "note: no throughput is known, so rampup.node_policy=best does not weigh restarts"
        )
    return lines + [f"note: {note}" for note in (*plan.notes, *resolved.notes)]


def _who_reads(resolved: Resolved) -> list[str]:
    """Which hosts read for which, in the largest stage; nothing where each reads its own samples and nobody asked."""
    stage = max(resolved.plan.stages, key=lambda stage: stage.num_nodes)
    if resolved.loading(stage) is None:
        return []
    readers = reading_hosts(stage.num_nodes, resolved.config.data.expansion_factor_real_data)
    groups = [
        [host for host, reader in enumerate(readers) if reader == leader]
        for leader in sorted(set(readers))
    ]
    if len(groups) == stage.num_nodes:
        return [
            f"data: each of {stage.num_nodes} hosts reads its own {stage.global_batch_size / stage.num_nodes:g} samples of a step"
        ]
    named = [
        f"host {group[0]} for {group[0]}-{group[-1]}"
        if len(group) > 1
        else f"host {group[0]} for itself"
        for group in groups
    ]
    shown = named if len(named) <= MOST_READERS else [*named[: MOST_READERS - 1], "...", named[-1]]
    most = max(map(len, groups)) * stage.global_batch_size / stage.num_nodes
    return [
        f"data: {len(groups)} of {stage.num_nodes} hosts read, up to {most:g} samples of a step each: {', '.join(shown)}"
    ]


def comparison_table(variants: Sequence[tuple[str, Resolved | UsageError]]) -> Table:
    """Plans side by side, one a row; a variant that does not fit has no figures."""
    table = build_table(
        "",
        "nodes",
        "GPUs",
        "batch",
        "accum",
        "samples",
        "steps",
        "tokens",
        "hours",
        "GPU-hours",
        left=("", "nodes"),
    )
    for name, resolved in variants:
        if isinstance(resolved, UsageError):
            table.add_row(name, "does not fit")
            continue
        plan, totals = resolved.plan, plan_totals(resolved.plan)
        last = plan.stages[-1]
        table.add_row(
            name,
            _runs([stage.num_nodes for stage in plan.stages]),
            str(plan.largest_world_size),
            str(last.global_batch_size),
            str(last.accumulate_grad_batches),
            totals.samples,
            totals.steps,
            totals.tokens,
            totals.hours,
            totals.gpu_hours,
        )
    return table


def _runs(nodes: Sequence[int]) -> str:
    """Nodes of the stages: all of them where they are few, else the first and the last."""
    shown = " ".join(map(str, nodes))
    return shown if len(nodes) <= 10 else f"{nodes[0]} ... {nodes[-1]}"


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _tokens(samples: int | None, plan: TrainingPlan) -> str:
    return "-" if samples is None else shorten(samples * plan.sequence_length)


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.1f}" if hours >= 1 else f"{hours:.3f}"


def _bar(size: int, largest: int) -> str:
    return "█" * max(1, round(BAR_WIDTH * size / largest))
