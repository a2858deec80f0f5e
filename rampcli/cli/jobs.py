"""Prints the jobs of a run, and the scripts that would start them."""

from collections.abc import Sequence

import typer
from rich.table import Table
from rich.text import Text

from rampcli.errors import visible
from rampcli.launch.protocol import Job, launcher_of, scripts_to_submit
from rampcli.planning.run_plan import Resolved
from rampcli.report.tables import build_table
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import consumed_samples


def print_scripts(resolved: Resolved, *, one_stage: bool = False, one_phase: bool = False) -> None:
    """Prints the scripts that a launch would submit, if it submits any.

    Args:
        one_stage: print the first one only, as the launch submits no other.
        one_phase: print those of the phase only.
    """
    directory = RunDirectory(resolved.run_dir)
    launcher = launcher_of(resolved.config)
    jobs = launcher.scripts(resolved, directory, consumed_samples(directory))
    for job in scripts_to_submit(resolved, jobs, one_stage=one_stage, one_phase=one_phase):
        typer.echo("\n# ---- " + visible(str(directory.path / job.script)))
        typer.echo(visible(job.text, keeps="\n\t"), nl=False)


def jobs_table(jobs: Sequence[Job]) -> Table:
    """Returns a table of jobs, one per row."""
    table = build_table(
        "stage", "batch", "nodes", "job", "after", "state", "reason", left=("state", "reason")
    )
    for job in jobs:
        lists = [", ".join(map(str, each)) for each in (job.stages, job.global_batch_sizes)]
        words = (job.job or "", job.dependency or "", job.state or "over", job.reason or "")
        table.add_row(*lists, str(job.num_nodes), *(Text(visible(word)) for word in words))
    return table
