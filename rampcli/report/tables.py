"""Summarises what a run has trained, as data and as a table."""

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.table import Table
from rich.text import Text

from rampcli.run_directory import RunDirectory
from rampcli.run_rows import loss_of, read_rows

LAST_STEPS = 10
"""Steps at the end of a stage over which rewards are averaged."""


def run_table(run: RunDirectory) -> Table:
    """Returns a table with one row per trained stage.

    The loss is the last step's. Rewards are means over the last steps.
    """
    stages = stages_trained(run)
    if stages and "reward" in stages[0]:
        return _reward_table(stages)
    table = build_table("stage", "batch", "processes", "samples", "steps", "loss", "tokens/s")
    for stage in stages:
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


def _reward_table(stages: Sequence[Mapping[str, Any]]) -> Table:
    """Returns the table of a run of reinforcement learning."""
    columns = ("stage", "prompts", "pairs", "processes", "in all", "steps", "reward", "solved")
    table = build_table(*columns, "tokens/s")
    for stage in stages:
        table.add_row(
            str(stage["stage"]),
            str(stage["global_batch_size"]),
            str(stage["pairs"]),
            ", ".join(map(str, stage["world_sizes"])),
            f"{stage['samples']:,}",
            f"{stage['steps']:,}",
            figure(stage["reward"]),
            share(stage["solved"]),
            f"{stage['tokens_per_s']:,.0f}",
        )
    return table


def figure(number: float | None) -> str:
    """Returns a reward as text, or "-" if it is unknown."""
    return "-" if number is None else f"{number:.3f}"


def share(number: float | None) -> str:
    """Returns a share as text, or "-" if it is unknown."""
    return "-" if number is None else f"{number:.1%}"


def duration(seconds: float) -> str:
    """Returns a duration as `0:42`, `12:05`, `3:07:00` or `5 d 03:07:00`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours:02}:{minutes:02}:{rest:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def stages_trained(run: RunDirectory) -> list[dict[str, Any]]:
    """Returns a summary of each stage in `metrics.jsonl`, in the order of training.

    Each has `stage`, `global_batch_size`, `world_sizes`, `samples`, `steps`, `loss` of the last
    step in nats per token, and `tokens_per_s` over all of its steps. In reinforcement learning,
    each also has `pairs` per step, and `reward` and `solved` as means over the last steps.
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
                **_rewards(rows),
            }
        )
    return stages


def _rewards(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the rewards of a stage; nothing without reinforcement learning."""
    if "reward" not in rows[-1]:
        return {}
    means = {}
    for name in ("reward", "solved"):
        known = [row[name] for row in rows[-LAST_STEPS:] if row.get(name) is not None]
        means[name] = sum(known) / len(known) if known else None
    return {"pairs": rows[-1].get("pairs"), **means}


def evaluations(run: RunDirectory) -> list[dict[str, Any]]:
    """Returns the last evaluation on held-out prompts of each step, in order."""
    return _last_of_each_step(run, "evaluation")


def evaluation_line(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the rewards of held-out prompts in one line, from one evaluation to the next."""
    parts = []
    for kind in ("greedy", "sampled"):
        rewards = " -> ".join(figure(row[kind]) for row in rows)
        solved = " -> ".join(share(row[f"{kind}_solved"]) for row in rows)
        parts.append(f"{kind} reward {rewards}, solved {solved}")
    if unscored := rows[-1].get("unscored"):
        reason = rows[-1].get("reason")  # unknown if another rank could not score them
        because = "" if reason is None else f": {reason}"
        parts.append(f"{unscored} of their responses have no reward{because}")
    return f"held-out prompts: {'; '.join(parts)}"


def validations(run: RunDirectory) -> dict[str | None, list[dict[str, Any]]]:
    """Returns the last validation of each step, in order, by the name of the corpus.

    The name is None for a corpus without one.
    """
    by_corpus: dict[str | None, list[dict[str, Any]]] = {}
    for row in _last_of_each_step(run, "validation"):
        by_corpus.setdefault(row.get("corpus"), []).append(row)
    return by_corpus


def validation_line(
    validations: Mapping[str | None, Sequence[Mapping[str, Any]]], *, digits: int
) -> str:
    """Returns the losses of each corpus in one line, from one validation to the next."""
    return f"validation loss {_by_corpus(validations, 'loss', digits=digits)}"


def bits_line(validations: Mapping[str | None, Sequence[Mapping[str, Any]]]) -> str:
    """Returns the bits per byte of each corpus in one line, from one validation to the next."""
    return f"bits per byte {_by_corpus(validations, 'bits_per_byte', digits=3)}"


def _by_corpus(
    validations: Mapping[str | None, Sequence[Mapping[str, Any]]], column: str, *, digits: int
) -> str:
    parts = []
    for corpus, rows in validations.items():
        values = [row.get(column) for row in rows]
        shown = " -> ".join("nan" if value is None else f"{value:.{digits}f}" for value in values)
        parts.append(shown if corpus is None else f"{corpus} {shown}")
    return ", ".join(parts)


def _last_of_each_step(run: RunDirectory, kind: str) -> list[dict[str, Any]]:
    """Returns events. A run that starts again before its first checkpoint repeats some of them."""
    rows = {
        (row["step"], row.get("corpus")): row
        for row in read_rows(run.events)
        if row["event"] == kind
    }
    return list(rows.values())


def build_table(*columns: str | Text, left: Collection[str] = ("",)) -> Table:
    """Returns an empty table without rules, right-aligned except for the columns in `left`."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="left" if str(column) in left else "right", no_wrap=True)
    return table
