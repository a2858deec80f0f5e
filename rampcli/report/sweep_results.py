"""The results of a sweep: what each run has reached, as facts and as a table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from rich.table import Table

from rampcli.report.run_report import report_run
from rampcli.report.tables import count, figure, table_of
from rampcli.runs.directory import COMPLETE
from rampcli.runs.record import RunRecord

BEST_MARK = "best"


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepResult:
    """Results of one run of a sweep. Unknown values are None.

    Attributes:
        run_dir: its run directory.
        values: value of each setting that varies.
        state: as `rampcli status` shows it, or "damaged".
        steps: optimiser steps taken.
        loss: training loss, mean over its last steps.
        validation_losses: last validation loss of each corpus; "" is the only one.
        best_validation_losses: lowest validation loss of each corpus.
        tokens_per_s: over all steps.
        problem: why it failed or cannot be read.
    """

    run_dir: str
    values: Mapping[str, str]
    state: str
    steps: int = 0
    loss: float | None = None
    validation_losses: Mapping[str, float] = field(default_factory=dict)
    best_validation_losses: Mapping[str, float] = field(default_factory=dict)
    tokens_per_s: float | None = None
    problem: str | None = None


def result_of(
    record: RunRecord, *, values: Mapping[str, str], state: str, problem: str | None
) -> SweepResult:
    """Returns the result of a run that has started."""
    report = report_run(record)
    losses = [stage.figures["loss"] for stage in report.stages if stage.steps]
    return SweepResult(
        run_dir=str(record.path),
        values=values,
        state=state,
        steps=report.facts.step,
        loss=losses[-1] if losses else None,
        validation_losses={name: rows[-1][1] for name, rows in report.validations.items()},
        best_validation_losses={
            name: min(loss for _, loss in rows) for name, rows in report.validations.items()
        },
        tokens_per_s=report.tokens_per_s,
        problem=problem,
    )


def judged_loss(
    results: Sequence[SweepResult],
) -> tuple[str, Callable[[SweepResult], float | None]]:
    """Returns the name of the loss by which runs are compared, and the loss itself.

    It is the last validation loss of the first corpus. Without validation, the training loss.
    """
    corpora = dict.fromkeys(name for one in results for name in one.validation_losses)
    if not corpora:
        return "loss", lambda one: one.loss
    corpus = next(iter(corpora))
    return f"validation loss {corpus}".strip(), lambda one: one.validation_losses.get(corpus)


def best_of(results: Sequence[SweepResult]) -> SweepResult | None:
    """Returns the complete run with the lowest loss, or None if no run is complete."""
    _, loss_of = judged_loss(results)
    losses = [(loss_of(one), one) for one in results if one.state == COMPLETE]
    known = [(loss, one) for loss, one in losses if loss is not None]
    return min(known, key=lambda pair: pair[0])[1] if known else None


def results_table(results: Sequence[SweepResult], best: SweepResult | None) -> Table:
    """Returns the results, one run per row, with a mark on the best one.

    `loss` is the mean over the last steps; `lowest` is the lowest validation loss of a run.
    """
    keys = dict.fromkeys(key for one in results for key in one.values)
    corpora = dict.fromkeys(name for one in results for name in one.validation_losses)
    columns: dict[str, Callable[[SweepResult], str]] = {
        **{key: partial(_value, key) for key in keys},
        "state": lambda one: one.state,
        "steps": lambda one: f"{one.steps:,}",
        "loss": lambda one: figure(one.loss),
    }
    for name in corpora:
        columns[f"validation {name}".strip()] = partial(_loss, "validation_losses", name)
        columns[f"lowest {name}".strip()] = partial(_loss, "best_validation_losses", name)
    columns["tokens/s"] = lambda one: count(one.tokens_per_s)
    columns[""] = lambda one: BEST_MARK if one is best else ""
    return table_of(results, columns, left=("", "state"))


def _value(key: str, result: SweepResult) -> str:
    return result.values.get(key, "-")


def _loss(losses: str, corpus: str, result: SweepResult) -> str:
    return figure(getattr(result, losses).get(corpus))
