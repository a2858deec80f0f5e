"""Prints the results of a sweep, also while its runs are training."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import typer

from rampcli.cbs.folder import find_branches
from rampcli.cli.console import build_console, say
from rampcli.cli.pictures import writing_picture
from rampcli.errors import RampcliError, reason_of
from rampcli.launch.status import Queues, read_status
from rampcli.report.sweep_results import (
    SweepResult,
    best_of,
    judged_loss,
    result_of,
    results_table,
)
from rampcli.runs.directory import COMPLETE, RunDirectory
from rampcli.runs.record import read_run
from rampcli.runs.sweep_folder import SweepFolder


def print_results(folder: SweepFolder, *, plot: Path | None, as_json: bool) -> None:
    """Prints the results of all runs in a folder, and draws them if asked to.

    Raises:
        DamagedFileError: the list of the runs is damaged.
        UsageError: the picture cannot be written.
    """
    queues = Queues()
    results = [_read_result(folder, name, of, queues) for name, of in folder.read().items()]
    branches = find_branches(folder.path)
    # Those of branches are compared with their standard errors, by the command that trains them.
    best = best_of(results) if branches is None else None
    drawn = plot is not None and _draw(results, plot, title=folder.path.name)
    if as_json:
        facts = {
            "folder": str(folder.path),
            "best": None if best is None else best.run_dir,
            "runs": [asdict(one) for one in results],
        }
        typer.echo(json.dumps(facts, indent=1))
        return
    console = build_console()
    problems = (f"{one.run_dir}: {one.problem}" for one in results if one.problem is not None)
    say(console, results_table(results, best), *problems, f"folder: {folder.path}")
    if branches is not None:
        say(console, f"the losses are compared by:\n  {branches.comparison}")
    if plot is not None:
        say(console, f"wrote {plot}" if drawn else "nothing to plot yet")


def _read_result(
    folder: SweepFolder, name: str, values: dict[str, str], queues: Queues
) -> SweepResult:
    unknown = SweepResult(run_dir=str(folder.path / name), values=values, state="damaged")
    try:
        directory = RunDirectory(folder.run_path(name))
        status = read_status(directory, queues)
        if not directory.config.is_file():
            return replace(unknown, state=status.state)
        error = status.facts.error
        problem = status.jobs_unknown if error is None else error["message"]
        return result_of(read_run(directory), values=values, state=status.state, problem=problem)
    except (RampcliError, OSError) as error:
        return replace(unknown, problem=reason_of(error))


def _draw(results: list[SweepResult], path: Path, *, title: str) -> bool:
    """Draws the complete runs. Returns False if no run is complete."""
    _, loss_of = judged_loss(results)
    complete = [one for one in results if one.state == COMPLETE and loss_of(one) is not None]
    if not complete:
        return False
    with writing_picture(path):
        from rampcli.report.run_plots import number_axis, plot_runs, plot_sweep

        if (key := number_axis(complete)) is not None:
            plot_sweep(complete, key, path, title=title)
        else:
            plot_runs([read_run(one.run_dir) for one in complete], path)
    return True
