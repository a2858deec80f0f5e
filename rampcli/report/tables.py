"""Summarises what a run has trained, as data and as a table."""

from collections.abc import Collection
from itertools import groupby
from typing import Any

from rich.table import Table

from rampcli.run_directory import RunDirectory, loss_of, read_rows


def run_table(run: RunDirectory) -> Table:
    """Returns a table with one row per trained stage. The loss is the last step's."""
    table = build_table("stage", "batch", "processes", "samples", "steps", "loss", "tokens/s")
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
    """Returns a summary of each stage in `metrics.jsonl`, in the order of training.

    Each has `stage`, `global_batch_size`, `world_sizes`, `samples`, `steps`, `loss` of the last
    step in nats per token, and `tokens_per_s` over all of its steps.
    """
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
                "loss": loss_of(rows[-1]),
                "tokens_per_s": tokens / sum(row["step_time_s"] for row in rows),
            }
        )
    return stages


def validations(run: RunDirectory) -> list[float]:
    """Returns the validation losses in nats per token, in the order they were measured."""
    return [loss_of(row) for row in read_rows(run.events) if row["event"] == "validation"]


def build_table(*columns: str, left: Collection[str] = ("",)) -> Table:
    """Returns an empty table without rules, right-aligned except for the columns in `left`."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right", no_wrap=True)
    return table
