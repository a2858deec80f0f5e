"""`rampcli sweep`: trains the runs of a sweep in turn, or submits their jobs."""

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console

from rampcli.cli.console import build_console, print_table, say
from rampcli.cli.pictures import check_picture
from rampcli.cli.sweep_runs import SweepRun, compose_sweep
from rampcli.cli.training import train
from rampcli.errors import EXIT_CTRL_C, EXIT_INTERRUPTED, RampcliError
from rampcli.launch import run as launch
from rampcli.launch.launchers import launcher_of
from rampcli.launch.queues import Queues
from rampcli.launch.status import read_status
from rampcli.launch.stop_signals import catch_stop_signals, exit_code_after
from rampcli.report.sweep_plan import PlannedRun, sweep_plan_table
from rampcli.runs.sweep_folder import SweepFolder


def sweep(
    factory: str,
    words: Sequence[str],
    *,
    config_dir: Path | None,
    dry_run: bool,
    command: Sequence[str],
    as_json: bool,
    plot: Path | None,
) -> int:
    """Trains every combination of values, prints the results, and returns the exit code.

    Args:
        factory: recipe, as it is typed.
        words: `KEY=VALUE` words, some of which list several values.
        config_dir: a folder of further group options.
        dry_run: check and print the runs without starting one.
        command: words of the command that resumes the sweep.
        as_json: print JSON and nothing else.
        plot: .svg or .png file for a picture, or None.

    Raises:
        RampcliError: a run cannot start. None was started, and nothing was written.
    """
    if plot is not None:
        check_picture(plot)
    folder, runs = compose_sweep(factory, words, config_dir=config_dir, starts=not dry_run)
    if dry_run:
        _print_plan(folder, runs, as_json=as_json)
        return 0
    console = Console(file=open(os.devnull, "w")) if as_json else build_console()  # noqa: SIM115
    folder.claim()
    folder.add({run.combination.folder: run.combination.values for run in runs})
    code = _run_all(runs, command, console)
    if as_json or code not in (EXIT_CTRL_C, EXIT_INTERRUPTED):
        # It imports numpy, which a command needs at its end only.
        from rampcli.cli.sweep_results import print_results

        console.print()
        print_results(folder, plot=plot, as_json=as_json)
    if code == 0 and not as_json and not launcher_of(runs[0].resolved.config).runs_here:
        report = f"rampcli report {shlex.quote(str(folder.path))}"
        say(console, f"follow the jobs with:\n  {report}")
    return code


def _run_all(runs: Sequence[SweepRun], command: Sequence[str], console: Console) -> int:
    """Starts the runs that are not complete, and returns the exit code.

    A run that fails does not keep the others from starting. A stop signal ends the sweep.

    Raises:
        RampcliError: workers did not save after a stop signal, or standard output was closed.
    """
    failed, code = 0, 0
    with catch_stop_signals() as signals:
        for number, run in enumerate(runs, start=1):
            title = f"run {number} of {len(runs)}: {run.combination}"
            try:
                code = _start(run, title, command, console)
            except RampcliError as error:
                if signals.signal is not None or error.exit_code == EXIT_INTERRUPTED:
                    raise
                say(console, str(error))
                failed += 1
            if code or signals.signal is not None:
                stopped = f"the sweep stopped at run {number} of {len(runs)}"
                say(console, f"{stopped}; the same command resumes it")
                return code or exit_code_after(signals)
    if failed:
        say(console, f"{failed} of {len(runs)} runs failed; the same command starts them again")
    return 1 if failed else 0


def _start(run: SweepRun, title: str, command: Sequence[str], console: Console) -> int:
    """Trains a run, or submits its jobs, unless it is complete or something else trains it.

    Returns:
        0, or the exit code of a run that was interrupted.

    Raises:
        RampcliError: it failed.
    """
    if run.is_complete:
        say(console, f"{title} is complete")
        return 0
    status = read_status(run.directory)
    if any(job.is_active for job in status.jobs):
        say(console, f"{title} has jobs in the queue")
        return 0
    if status.supervisor is not None:
        say(console, f"{title} is trained by {status.supervisor}")
        return 0
    words = run.combination.words
    if launcher_of(run.resolved.config).runs_here:
        say(console, f"\n{title}")
        return train(run.resolved, command=command, overrides=words, console=console).exit_code
    jobs = launch.run(run.resolved, command=command, overrides=words).jobs
    say(console, f"{title}: submitted {', '.join(job.job or '' for job in jobs)}")
    return 0


def _print_plan(folder: SweepFolder, runs: Sequence[SweepRun], *, as_json: bool) -> None:
    queues = Queues()
    planned = [
        PlannedRun(
            run_dir=str(run.directory.path),
            values=run.combination.values,
            state=read_status(run.directory, queues).state,
            plan=run.resolved.plan,
        )
        for run in runs
    ]
    if as_json:
        facts = {"folder": str(folder.path), "runs": [run.to_json() for run in planned]}
        typer.echo(json.dumps(facts, indent=1))
        return
    console = build_console()
    print_table(console, sweep_plan_table(planned))
    say(console, f"folder: {folder.path}")
