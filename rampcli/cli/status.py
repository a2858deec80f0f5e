"""`rampcli status`: where runs stand, as a table, as JSON, or refreshed every two seconds."""

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rampcli.cli.options import AsJson
from rampcli.errors import UsageError, visible

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from rampcli.cli.status_table import WatchedRuns
    from rampcli.launch.status import RunStatus
    from rampcli.runs.directory import RunDirectory

REFRESH_S = 2.0


def status(
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w")] = False,
    as_json: AsJson = False,
) -> None:
    """Show where runs stand.

    For a single named run, also show what trains it and how to resume it.

    Args:
        runs: Run directories, or names of runs below runs/. Default: all runs below runs/.
        watch: Refresh every two seconds until Ctrl-C.
    """
    from rampcli.cli.console import build_console, say
    from rampcli.cli.status_table import WatchedRuns

    if watch and as_json:
        raise UsageError(
            "--watch prints no JSON", remedy=["--watch without --json", "--json without --watch"]
        )
    named = WatchedRuns(runs or [])
    console = build_console()
    if as_json:
        _print_json(named)
    elif watch:
        if not console.is_terminal or console.is_dumb_terminal:
            raise UsageError("--watch needs a terminal", remedy="rampcli status, or --json")
        from rich.live import Live

        with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
            while True:
                live.update(picture(named), refresh=True)
                time.sleep(REFRESH_S)
    else:
        say(console, *tables(named))


def tables(runs: "WatchedRuns") -> list["RenderableType"]:
    """Returns the table of the runs, and the details of the run if only one was named."""
    from rampcli.cli.status_table import StatusTable
    from rampcli.runs.directory import RUNS

    listed = runs.read()
    if not listed:
        return [
            f"there is no run in {RUNS}/; start one with `rampcli pretrain --factory llama3_tiny`,"
            " or name the directory of a run: rampcli status RUN"
        ]
    table = StatusTable(listed, has_texts=runs.only is None)
    if runs.only is None or listed[0].status is None:
        return [table]
    return [table, "", *details(runs.only, listed[0].status)]


def details(run: "RunDirectory", status: "RunStatus") -> Iterator["str | Table"]:
    """Yields the details of the only run: its progress, error, jobs, and how to resume it."""
    from rampcli.cbs.folder import describe_branches
    from rampcli.cli.jobs import jobs_table
    from rampcli.config import snapshot
    from rampcli.report.tables import in_phase, origin_text

    facts, saved = status.facts, "nothing saved"
    if status.saved_step is not None:
        saved = f"saved after step {status.saved_step:,}"
    consumed = f"{facts.consumed_samples:,} {snapshot.unit(run.config)}"
    yield f"step {facts.step:,}, {consumed}{in_phase(facts.phase)}; {saved}"
    if facts.events.origin is not None:
        yield f"continues {origin_text(facts.events.origin)}"
    if facts.events.warnings:
        yield f"warning: {visible(facts.events.warnings[-1])}"
    if facts.error is not None:
        yield f"error: {visible(facts.error['message'])}"
        if facts.error["remedy"]:
            yield f"try:   {visible(facts.error['remedy'])}"
    yield from describe_branches(run)
    if status.jobs:
        yield jobs_table(status.jobs)
    if status.jobs_unknown is not None:
        yield f"the state of its jobs is unknown: {status.jobs_unknown}"
    yield from _supervision(run, status)


def _supervision(run: "RunDirectory", status: "RunStatus") -> Iterator[str]:
    """Yields the process that trains a run, or how to resume it; nothing if that is unknown."""
    from rampcli.files.locks import is_held
    from rampcli.launch.status import STARTING_STATE, TRAINING_STATE, UNKNOWN_STATE, WAITING_STATE
    from rampcli.runs.directory import COMPLETE

    if status.supervisor is not None:
        yield f"supervised by {status.supervisor}"
    elif is_held(run.workers_lock):
        yield "training, but the supervisor is gone"
    elif status.state == WAITING_STATE:
        yield "waiting in the queue"
    elif status.state not in (STARTING_STATE, TRAINING_STATE, UNKNOWN_STATE, COMPLETE):
        coming, error = status.facts.recorded["next"], status.facts.error
        has_remedy = error is not None and error["remedy"] is not None
        if any(job.is_active for job in status.jobs):
            yield "not training; its job has not ended yet"
        elif coming is None or has_remedy:
            yield "not training"
        elif coming["command"] is None:
            yield "not training; to resume, start it again as before"
        else:
            yield f"not training; resume with:\n  {visible(coming['command'])}"


def _print_json(runs: "WatchedRuns") -> None:
    """Prints one object for a single named run, otherwise a list of objects."""
    objects = []
    for listed, run in zip(runs.read(), runs.found, strict=True):
        facts: dict[str, Any] = {"path": str(run.path)}
        if listed.status is None:
            objects.append(facts | {"problem": listed.problem})
        else:
            objects.append(facts | listed.status.to_json())
    typer.echo(json.dumps(objects if runs.only is None else objects[0], indent=1))


def picture(runs: "WatchedRuns") -> "RenderableType":
    """Returns what `--watch` shows now."""
    from rich.console import Group
    from rich.text import Text

    return Group(
        *(Text(visible(one, keeps="\n")) if isinstance(one, str) else one for one in tables(runs))
    )
