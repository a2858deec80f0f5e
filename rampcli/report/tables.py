"""Tables of a plan and of a run."""

from itertools import groupby
from typing import Any

from rich.table import Table

from rampcli.batch.training_plan import TrainingPlan
from rampcli.run_directory import RunDirectory, read_rows


def plan_table(plan: TrainingPlan, *, bars: bool) -> Table:
    """The stages of a plan, one a row: `dp` is the data-parallel size, `from` the samples consumed before the stage.

    `bars` draws the batch sizes beside them; without, the table fits into 80 columns.
    """
    columns = ["stage", "batch", "nodes", "ranks", "dp", "micro", "accum", "from", "samples", "steps"]
    table = _table(*columns, *([""] if bars else []))
    for stage in plan.stages:
        table.add_row(
            str(stage.stage),
            str(stage.global_batch_size),
            str(stage.num_nodes),
            str(stage.world_size),
            str(stage.data_parallel_size),
            str(stage.micro_batch_size),
            str(stage.accumulate_grad_batches),
            f"{stage.first_sample:,}",
            _count(stage.samples),
            _count(stage.steps),
            *([_bar(stage.global_batch_size, plan.ramp.target)] if bars else []),
        )
    return table


def run_table(run: RunDirectory) -> Table:
    """The stages of a run as they were trained, one a row: loss is that of the stage's last step."""
    table = _table("stage", "batch", "processes", "samples", "steps", "loss", "tokens/s")
    for stage in stages_trained(run):
        table.add_row(
            str(stage["stage"]),
            str(stage["global_batch_size"]),
            ", ".join(map(str, stage["world_sizes"])),
            f"{stage['samples']:,}",
            f"{stage['steps']:,}",
            f"{stage['loss']:.3f}",
            f"{stage['tokens_per_s']:,.0f}",
        )
    return table


def stages_trained(run: RunDirectory) -> list[dict[str, Any]]:
    """What metrics.jsonl says of each stage: samples, steps, loss of its last step, tokens per second over its steps."""
    stages = []
    for stage, group in groupby(read_rows(run.metrics), key=lambda row: row["stage"]):
        rows = list(group)
        tokens = sum(row["tokens_per_s"] * row["step_time_s"] for row in rows)
        stages.append(
            {
                "stage": stage,
                "global_batch_size": rows[-1]["global_batch_size"],
                "world_sizes": sorted({row["world_size"] for row in rows}),
                "samples": sum(row["global_batch_size"] for row in rows),
                "steps": len(rows),
                "loss": rows[-1]["loss"],
                "tokens_per_s": tokens / sum(row["step_time_s"] for row in rows),
            }
        )
    return stages


def validations(run: RunDirectory) -> list[float]:
    """Validation losses in nats per token, in the order in which they were measured."""
    return [row["loss"] for row in read_rows(run.events) if row["event"] == "validation"]


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    return table


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _bar(size: int, largest: int, width: int = 16) -> str:
    return "█" * max(1, round(width * size / largest))
