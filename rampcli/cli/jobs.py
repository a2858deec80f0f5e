"""`rampcli status` and `rampcli cancel`, and what `pretrain` shows of a chain of jobs."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from rampcli.checkpoint.manifest import complete_checkpoints, consumed_samples
from rampcli.cli.console import build_console, print_table, say
from rampcli.config.resolve import Resolved
from rampcli.errors import DamagedFileError, RampcliError, UsageError, visible
from rampcli.launch.cancelling import cancel
from rampcli.launch.run_lock import Holder, holder_of
from rampcli.launch.slurm import chain
from rampcli.launch.slurm.scripts import render
from rampcli.locks import is_held
from rampcli.report.tables import build_table
from rampcli.run_directory import BEFORE_THE_START, COMPLETE, RunDirectory, read_rows


def show_scripts(resolved: Resolved) -> None:
    """Print the scripts that would be submitted."""
    directory = RunDirectory(resolved.run_dir)
    for script in render(resolved, directory, consumed_samples=consumed_samples(directory)):
        typer.echo(visible(f"\n# ---- {script.path}\n{script.text}", keeps="\n\t"), nl=False)


def show_jobs(jobs: Sequence[chain.JobStatus], console: Console) -> None:
    """Print the jobs of a chain, one a row."""
    table = build_table(
        "stage", "batch", "nodes", "job", "after", "state", "reason", left=("state", "reason")
    )
    for each in jobs:
        planned = each.planned
        lists = (planned.stages, planned.global_batch_sizes)
        names = [", ".join(map(str, values)) for values in lists]
        words = (each.job or "", planned.dependency or "", each.state or "over", each.reason or "")
        table.add_row(*names, str(planned.num_nodes), *(Text(visible(word)) for word in words))
    print_table(console, table)


def tell_status(run_dir: Path, *, as_json: bool) -> None:
    """Print where a run stands, who trains it, and how to go on.

    Raises:
        UsageError: there is no run.
    """
    directory = _existing(run_dir)
    state = directory.read_state() or BEFORE_THE_START
    last: dict[str, Any] = {}
    for row in read_rows(directory.metrics):
        last = row
    holder, jobs, unknown = holder_of(directory), list[chain.JobStatus](), None
    try:
        jobs = chain.status(directory)
    except (DamagedFileError, UsageError):  # of jobs.json itself
        raise
    except RampcliError as error:  # all the rest is known without Slurm
        unknown = error.message
    facts = {
        "status": state["status"],
        "step": max(state["step"], last.get("step", 0)),
        "consumed_samples": max(state["consumed_samples"], last.get("consumed_samples", 0)),
        "stage": max(state["stage"], last.get("stage", 0)),
        "saved_step": max(
            (checkpoint.step for checkpoint in complete_checkpoints(directory)), default=None
        ),
        "supervisor": None if holder is None else asdict(holder),
        "jobs": [
            {**asdict(job.planned), "job": job.job, "state": job.state, "reason": job.reason}
            for job in jobs
        ],
        "jobs_unknown": unknown,
        "error": state.get("error"),
        "next": state["next"],
    }
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    console = build_console()
    saved = (
        "nothing saved"
        if facts["saved_step"] is None
        else f"saved after step {facts['saved_step']:,}"
    )
    progress = (
        f"step {facts['step']:,}, {facts['consumed_samples']:,} samples, stage {facts['stage']}"
    )
    say(console, f"{visible(facts['status'])}: {progress}; {saved}")
    if facts["error"]:
        say(console, f"error: {visible(facts['error']['message'])}")
        if facts["error"]["remedy"]:
            say(console, f"try:   {visible(facts['error']['remedy'])}")
    if jobs:
        show_jobs(jobs, console)
    elif unknown is not None:
        say(console, f"nothing is known of its jobs: {unknown}")
    if holder is not None:
        say(console, f"trained by {holder}")
    elif is_held(directory.workers_lock):
        say(console, "trained by workers that nobody supervises")
    elif any(job.lives for job in jobs):
        say(console, "waiting for Slurm")
    elif state["status"] != COMPLETE:
        command = (state["next"] or {}).get("command")
        has_remedy = state.get("error", {}).get("remedy") is not None
        ahead = "" if command is None or has_remedy else f"; go on with:\n  {visible(command)}"
        say(console, f"nobody trains it now{ahead}")


def cancel_run(run_dir: Path) -> None:
    """Have a run save and end.

    Raises:
        UsageError: there is no run, or nobody trains it here.
        RampcliError: Slurm does not answer.
    """
    asked = cancel(_existing(run_dir))
    console = build_console()
    if isinstance(asked, Holder):
        say(console, f"asked {asked} to save and end")
    else:
        show_jobs(asked, console)
        say(console, "what runs still saves, and ends then")


def _existing(run_dir: Path) -> RunDirectory:
    directory = RunDirectory(run_dir)
    if not directory.config.is_file():
        raise UsageError(
            f"{run_dir} is no run directory: it has no config.yaml",
            remedy="runs/NAME, of a run that was started",
        )
    return directory
