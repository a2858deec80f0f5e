"""`rampcli status` and `rampcli cancel`, and the tables of jobs that `pretrain` prints."""

import json
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from rampcli.checkpoint.manifest import consumed_samples
from rampcli.cli.console import build_console, print_table, say
from rampcli.config import snapshot
from rampcli.config.run_plan import Resolved
from rampcli.errors import visible
from rampcli.launch.cancel import cancel
from rampcli.launch.launchers import launcher_of
from rampcli.launch.protocol import Job
from rampcli.launch.run_lock import Holder
from rampcli.launch.status import RunStatus, read_status
from rampcli.locks import is_held
from rampcli.report.tables import build_table
from rampcli.run_directory import COMPLETE, RunDirectory, existing_run


def print_scripts(resolved: Resolved) -> None:
    """Prints the scripts that a launch would submit, if it submits any."""
    directory = RunDirectory(resolved.run_dir)
    launcher = launcher_of(resolved.config)
    for script in launcher.scripts(resolved, directory, consumed_samples(directory)):
        typer.echo(visible(f"\n# ---- {script.path}\n{script.text}", keeps="\n\t"), nl=False)


def print_jobs(jobs: Sequence[Job], console: Console) -> None:
    """Prints jobs as a table, one per row."""
    table = build_table(
        "stage", "batch", "nodes", "job", "after", "state", "reason", left=("state", "reason")
    )
    for job in jobs:
        lists = [", ".join(map(str, each)) for each in (job.stages, job.global_batch_sizes)]
        words = (job.job or "", job.dependency or "", job.state or "over", job.reason or "")
        table.add_row(*lists, str(job.num_nodes), *(Text(visible(word)) for word in words))
    print_table(console, table)


def print_status(run_dir: Path, *, as_json: bool) -> None:
    """Prints where a run stands, what trains it, and how to resume it.

    Raises:
        UsageError: the folder is not a run directory.
        DamagedFileError: a file of the run is damaged.
    """
    directory = existing_run(run_dir)
    status = read_status(directory)
    if as_json:
        typer.echo(json.dumps(status.to_json(), indent=1))
        return
    console = build_console()
    _print_progress(status, console, unit=snapshot.unit(directory.config))
    if status.supervisor is not None:
        say(console, f"supervised by {status.supervisor}")
    elif is_held(directory.workers_lock):
        say(console, "training, but the supervisor is gone")
    elif any(job.is_active for job in status.jobs):
        say(console, "waiting in the queue")
    elif status.status != COMPLETE:
        command = (status.next or {}).get("command")
        has_remedy = status.error is not None and status.error["remedy"] is not None
        resume = "" if command is None or has_remedy else f"; resume with:\n  {visible(command)}"
        say(console, f"not training{resume}")


def _print_progress(status: RunStatus, console: Console, *, unit: str) -> None:
    """Prints the progress of a run, its error, and its jobs. `unit` is what the run counts."""
    saved = (
        "nothing saved" if status.saved_step is None else f"saved after step {status.saved_step:,}"
    )
    say(
        console,
        f"{visible(status.status)}: step {status.step:,}, {status.consumed_samples:,} {unit},"
        f" stage {status.stage}; {saved}",
    )
    if status.error:
        say(console, f"error: {visible(status.error['message'])}")
        if status.error["remedy"]:
            say(console, f"try:   {visible(status.error['remedy'])}")
    if status.jobs:
        print_jobs(status.jobs, console)
    if status.jobs_unknown is not None:
        say(console, f"the state of its jobs is unknown: {status.jobs_unknown}")


def cancel_run(run_dir: Path) -> None:
    """Asks a run to save and exit.

    Raises:
        UsageError: the folder is not a run directory, or the run is not training here.
        RampcliError: the queue does not answer.
    """
    asked = cancel(existing_run(run_dir))
    console = build_console()
    if isinstance(asked, Holder):
        say(console, f"asked {asked} to save and exit")
    else:
        print_jobs(asked, console)
        say(console, "a running job saves before it ends")
