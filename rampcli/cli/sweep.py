"""`rampcli sweep`: trains a recipe with every combination of values."""

import gc
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rampcli.cli.base import Base
from rampcli.cli.options import AsJson, plot_of
from rampcli.errors import EXIT_CTRL_C, EXIT_INTERRUPTED

if TYPE_CHECKING:
    from rampcli.report.sweep_plan import SweepRun
    from rampcli.runs.sweep_folder import SweepFolder


def sweep(
    base: Base,
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=A,B,C")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run")] = False,
    plot: Annotated[Path | None, plot_of("the loss over a value that varies")] = None,
    as_json: AsJson = False,
) -> None:
    """Train a recipe with every combination of values. Run the same command again to resume.

    The runs are in runs/NAME_sweep, or in the folder that run_dir= names.

    Args:
        overrides: Settings. Those with several values vary: A,B,C or range(8,33,8).
        dry_run: Check and print all runs without starting one.
    """
    from rampcli.cli.console import build_console, say
    from rampcli.cli.sweep_runs import compose_sweep, run_all
    from rampcli.launch.protocol import launcher_of

    gc.enable()
    folder, runs = compose_sweep(base, overrides or [], starts=not dry_run)
    if dry_run:
        _print_plan(folder, runs, as_json=as_json)
        return
    console = build_console(quiet=as_json)
    folder.claim()
    folder.add({run.combination.folder: run.combination.values for run in runs})
    code = run_all(runs, ["rampcli", *sys.argv[1:]], console)
    if as_json or code not in (EXIT_CTRL_C, EXIT_INTERRUPTED):
        # It imports numpy, which a command needs at its end only.
        from rampcli.cli.sweep_results import print_results

        console.print()
        print_results(folder, plot=plot, as_json=as_json)
    if code == 0 and not as_json and not launcher_of(runs[0].resolved.config).runs_here:
        report = f"rampcli report {shlex.quote(str(folder.path))}"
        say(console, f"follow the jobs with:\n  {report}")
    raise typer.Exit(code)


def _print_plan(folder: "SweepFolder", runs: Sequence["SweepRun"], *, as_json: bool) -> None:
    from rampcli.cli.console import build_console, say
    from rampcli.launch.status import Queues, read_status
    from rampcli.report.plan_notes import left_out_notes, throughput_notes
    from rampcli.report.sweep_plan import sweep_plan_table

    queues = Queues()
    states = [read_status(run.directory, queues).state for run in runs]
    if as_json:
        rows = [run.to_json(state) for run, state in zip(runs, states, strict=True)]
        facts = {"folder": str(folder.path), "runs": rows}
        typer.echo(json.dumps(facts, indent=1))
        return
    planned = [run.resolved for run in runs]
    notes = (f"note: {note}" for note in (*throughput_notes(planned), *left_out_notes(planned)))
    say(build_console(), sweep_plan_table(runs, states), f"folder: {folder.path}", *notes)
