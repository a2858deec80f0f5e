"""The runs of a sweep before they start, and a table of their plans with the totals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from rampcli.batch.plan import GLOBAL_KEY
from rampcli.batch.quantities import shorten
from rampcli.batch.training_plan import TrainingPlan
from rampcli.config.sweeps import Combination
from rampcli.errors import visible
from rampcli.planning.run_plan import Resolved
from rampcli.report.plan_notes import all_notes
from rampcli.report.plan_tables import plan_totals, total_hours
from rampcli.report.tables import build_table
from rampcli.runs.directory import RunDirectory


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepRun:
    """A checked run of a sweep. It has an end.

    Attributes:
        combination: its values.
        resolved: its configuration and plan.
        is_complete: True if it has nothing left to train.
    """

    combination: Combination
    resolved: Resolved
    is_complete: bool

    @property
    def directory(self) -> RunDirectory:
        """Its run directory."""
        return RunDirectory(self.resolved.run_dir)

    @property
    def plan(self) -> TrainingPlan:
        """Its plan."""
        return self.resolved.plan

    def to_json(self, state: str) -> dict[str, Any]:
        """Returns the run for `--json`, with its state as `rampcli status` shows it."""
        return {
            "run_dir": str(self.directory.path),
            "values": dict(self.combination.values),
            "state": state,
            "global_batch_sizes": [stage.global_batch_size for stage in self.plan.stages],
            "steps": self.plan.end_step,
            "tokens": self.plan.end_tokens or 0,
            "hours": None if (seconds := self.plan.run_s()) is None else seconds / 3600,
            "notes": all_notes(self.resolved),
        }


def sweep_plan_table(runs: Sequence[SweepRun], states: Sequence[str]) -> Table:
    """Returns the runs, one per row with its state, and their totals.

    There is no column of the batch if it is a value that varies, nor of hours without a
    throughput. Hours that were not measured have the marks of `plan_totals`.
    """
    plans = [run.plan for run in runs]
    columns = {
        "batch": ([_batches(run.plan) for run in runs], ""),
        "steps": _summed([run.plan.end_step or 0 for run in runs], "{:,}".format),
        "tokens": _summed([plan.end_tokens or 0 for plan in plans], shorten),
        "hours": (
            [plan_totals(plan)["hours"] for plan in plans],
            total_hours(plans, [plan.known_s() for plan in plans]),
        ),
        "state": (states, f"{len(runs)} run{'s' if len(runs) > 1 else ''}"),
    }
    if columns["batch"][0] == [run.combination.values.get(GLOBAL_KEY) for run in runs]:
        del columns["batch"]
    if any(plan.clock is None for plan in plans):
        del columns["hours"]
    keys = [*runs[0].combination.values]
    table = build_table(*keys, *columns, left=("state",))
    for row, run in enumerate(runs):
        cells = [*run.combination.values.values(), *(cells[row] for cells, _ in columns.values())]
        table.add_row(*(Text(visible(cell)) for cell in cells))
    blank = [""] * (len(keys) - 1)
    table.add_row("total", *blank, *(total for _, total in columns.values()), style="bold")
    return table


def _summed(numbers: Sequence[float], written: Callable[[float], str]) -> tuple[list[str], str]:
    """Returns the cells of a column, and their sum."""
    return [*map(written, numbers)], written(sum(numbers))


def _batches(plan: TrainingPlan) -> str:
    """Returns the batch size, or those of the first and the last stage."""
    first, last = plan.stages[0].global_batch_size, plan.stages[-1].global_batch_size
    return str(first) if first == last else f"{first} to {last}"
