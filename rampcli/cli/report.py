"""`rampcli report`: prints what runs have trained, and writes it to files."""

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rampcli.cli.options import AsJson, plot_of
from rampcli.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from rampcli.report.run_report import RunReport
    from rampcli.runs.directory import RunDirectory

Runs = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN", help="Run directories, or names of runs below runs/. Several are compared."
    ),
]
Html = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the live page of the runs to one file.")
]
Plot = Annotated[Path | None, plot_of("batch, loss and throughput")]


def report(runs: Runs, html: Html = None, plot: Plot = None, as_json: AsJson = False) -> None:
    """Show what runs have trained and where their time went.

    Also works for a run that is training, has crashed or was interrupted.
    """
    from rampcli.cli.console import build_console, say
    from rampcli.cli.pictures import writing_picture
    from rampcli.cli.sweep_results import print_results
    from rampcli.report.run_report import report_run
    from rampcli.runs.differences import differing_settings
    from rampcli.runs.facts import is_training
    from rampcli.runs.record import read_run, told_apart
    from rampcli.runs.sweep_folder import find_sweep

    if len(runs) == 1 and (sweep := find_sweep(runs[0])) is not None:
        if html is not None:
            write_html(find_runs(runs), html)
        print_results(sweep, plot=plot, as_json=as_json)
        if html is not None:
            say(build_console(quiet=as_json), f"wrote {html}")
        return
    directories = find_runs(runs)
    records = told_apart([read_run(directory) for directory in directories])
    reports = []
    for directory, record in zip(directories, records, strict=True):
        trains = is_training(directory, record.state["status"])
        reports.append(report_run(record, now=time.time() if trains else None))
    differences = differing_settings([record.settings for record in records])
    if html is not None:
        write_html(directories, html)
    if plot is not None:
        with writing_picture(plot):
            from rampcli.report.run_plots import plot_runs

            plot_runs(records, plot)
    if as_json:
        facts = {"runs": [one.to_json() for one in reports], "differences": differences}
        typer.echo(json.dumps(facts, indent=1))
        return
    parts = (
        _parts_of_run(reports[0], directories[0])
        if len(reports) == 1
        else _parts_of_comparison(reports, differences)
    )
    say(build_console(), *parts, *(f"wrote {path}" for path in (html, plot) if path))


def find_runs(words: Sequence[str]) -> list["RunDirectory"]:
    """Returns the runs that words name, each once. The name of a sweep stands for its runs."""
    from rampcli.runs.directory import RunDirectory, find_run
    from rampcli.runs.sweep_folder import find_sweep

    found: list[RunDirectory] = []
    for word in words:
        if (sweep := find_sweep(word)) is None:
            found.append(find_run(word))
        else:
            runs = (RunDirectory(sweep.run_path(name)) for name in sweep.read())
            found += [run for run in runs if run.config.is_file()]
    return list(dict.fromkeys(found))


def write_html(runs: Sequence["RunDirectory"], path: Path) -> None:
    """Writes the page of some runs as one file."""
    from rampcli.report.page_files import write_report_html

    try:
        write_report_html(runs, path)
    except OSError as error:
        raise UsageError(
            f"--html {path}: {error.strerror or error}", remedy="--html report.html"
        ) from error


def _parts_of_run(report: "RunReport", run: "RunDirectory") -> Iterator["str | Table"]:
    """Yields the report of a run."""
    from rampcli.cbs.folder import describe_branches
    from rampcli.report.run_text import (
        closing_lines,
        measured_table,
        stage_table,
        summary_lines,
        time_table,
    )
    from rampcli.report.tables import profile_parts

    yield from summary_lines(report)
    if report.stages:
        yield ""
        yield stage_table(report)
    if report.parts:
        yield from ("", time_table(report), "")
    if report.measured:
        yield from (measured_table(report), "")
    yield from closing_lines(report)
    yield from describe_branches(run)
    yield from profile_parts(run.path, [*report.facts.events.profiles.values()])


def _parts_of_comparison(
    reports: Sequence["RunReport"], differences: dict[str, list[str]]
) -> Iterator["str | Table"]:
    """Yields the comparison of several runs."""
    from rampcli.report.run_text import difference_table, phases_table, runs_table

    yield runs_table(reports)
    yield ""
    if any(one.phases for one in reports):
        yield from (phases_table(reports), "")
    if differences:
        yield difference_table([one.name for one in reports], differences)
    else:
        yield "the settings are the same"
