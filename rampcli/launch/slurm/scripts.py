"""Renders the sbatch scripts of a run's jobs from a template."""

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rampcli.batch.training_plan import StagePlan
from rampcli.errors import UsageError
from rampcli.files.guarded_folder import read_content
from rampcli.launch.protocol import Job
from rampcli.launch.slurm import SEARCH, SLURM_FOLDER
from rampcli.launch.slurm.settings import SlurmConfig
from rampcli.launch.slurm.template import render_template, render_within_limits
from rampcli.planning.run_plan import Resolved
from rampcli.runs.directory import RunDirectory

SIGNAL_MARGIN_S = 60
"""Time to requeue after `launch.grace_s`. Slurm checks time limits about once a minute."""
MOST_SCRIPT_BYTES = 2**20
_BUNDLED = Path(__file__).with_name("stage.sbatch.j2")


def render_jobs(
    resolved: Resolved, directory: RunDirectory, *, consumed_samples: int = 0
) -> list[Job]:
    """Returns a run's jobs with their scripts, in order.

    Args:
        consumed_samples: samples already trained on. Stages that end before need no job.

    Raises:
        UsageError: the template cannot be read or rendered, or Slurm cannot write logs into the
            run directory.
    """
    groups = (
        tuple(
            stage
            for stage in group
            if stage.end_sample is None or stage.end_sample > consumed_samples
        )
        for group in resolved.plan.stages_by_processes()
    )
    return _render(resolved, directory, [stages for stages in groups if stages])


def render_search(resolved: Resolved, directory: RunDirectory) -> Job:
    """Returns a job, with its script, that runs `rampcli.launch.protocol.SEARCH_PROGRAM`.

    It requests the nodes of the largest stage. Arguments and errors are those of `render_jobs`.
    """
    (script,) = _render(resolved, directory, [()])
    return script


def _render(
    resolved: Resolved, directory: RunDirectory, jobs: Sequence[tuple[StagePlan, ...]]
) -> list[Job]:
    """Returns jobs with their scripts, given the stages of each; a job without any searches."""
    folder = str(directory.path.resolve())
    if not {"%", "\\"}.isdisjoint(folder):
        raise UsageError(
            f"Slurm cannot write logs into {folder}: % and \\ have a special meaning in its paths",
            keys=("run_dir",),
            remedy="another run_dir=",
        )
    facts = [_facts(resolved, directory, stages) for stages in jobs]
    texts = _fill(resolved.config.launch.slurm.template, facts) if facts else []
    return [
        Job(
            name=variables["job_name"],
            stages=tuple(stage.stage for stage in stages),
            num_nodes=variables["num_nodes"],
            global_batch_sizes=tuple(stage.global_batch_size for stage in stages),
            script=f"{SLURM_FOLDER}/{_name(stages)}.sbatch",
            text=text,
        )
        for stages, variables, text in zip(jobs, facts, texts, strict=True)
    ]


def _name(stages: Sequence[StagePlan]) -> str:
    """Returns the name of a job's files."""
    return f"stage_{stages[0].stage}" if stages else SEARCH


def _facts(
    resolved: Resolved, directory: RunDirectory, stages: Sequence[StagePlan]
) -> dict[str, Any]:
    """Returns the variables of the template."""
    trainer, launch = resolved.config.trainer, resolved.config.launch
    gpus_per_node = 0 if trainer.accelerator == "cpu" else launch.slurm.gpus_per_node
    run_name = re.sub(r"[^A-Za-z0-9._-]+", "-", resolved.config.name)
    return {
        "job_name": f"{run_name}.{_name(stages).replace('_', '')}",
        "stages": [stage.stage for stage in stages] or [SEARCH],
        "num_nodes": max(stage.num_nodes for stage in stages or resolved.plan.stages),
        "devices": trainer.devices,
        "gpus_per_node": trainer.devices if gpus_per_node is None else gpus_per_node,
        "signal_s": math.ceil(launch.grace_s) + SIGNAL_MARGIN_S,
        "log": f"logs/{_name(stages)}.%j.log",
        "folder": str(Path.cwd()),
        "python": launch.slurm.python or sys.executable,
        "run_dir": str(directory.path.resolve()),
        "slurm": asdict(launch.slurm),
    }


def _fill(custom: str | None, facts: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the text of each job's script, from the user's own or the bundled template."""
    name = custom or str(_BUNDLED)
    try:
        template = read_content(Path(name), most_bytes=MOST_SCRIPT_BYTES).decode()
    except (OSError, ValueError) as error:  # ValueError: invalid UTF-8 or path
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"cannot read the template {name}: {reason}",
            keys=(SlurmConfig.template,),
            remedy=f"{SlurmConfig.template}=null",
        ) from error
    rendered = (render_within_limits if custom else render_template)(template, facts)
    if "reason" in rendered:
        where = "" if rendered["line"] is None else f"line {rendered['line']} of "
        raise UsageError(
            f"{where}the template {name}: {rendered['reason']}",
            keys=(SlurmConfig.template,),
            remedy=f"{SlurmConfig.template}=null, for the bundled template; the variables are"
            f" {', '.join(facts[0])}",
        )
    return [str(text) for text in rendered["texts"]]
