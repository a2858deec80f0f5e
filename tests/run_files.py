"""Complete contents of a run's files, for tests that write them without training."""

import json
from pathlib import Path
from typing import Any

from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import MANIFEST


def metrics_row(**facts: Any) -> dict[str, Any]:
    """Returns a row of metrics.jsonl."""
    row = {
        "step": 1,
        "stage": 0,
        "consumed_samples": 4,
        "global_batch_size": 4,
        "accumulate_grad_batches": 1,
        "world_size": 1,
        "loss": 2.5,
    }
    return row | {"step_time_s": 0.5, "samples_per_s": 8.0, "tokens_per_s": 1024.0} | facts


def manifest(**facts: Any) -> dict[str, Any]:
    """Returns the manifest of a checkpoint."""
    return {
        "format": 1,
        "step": 7,
        "consumed_samples": 8,
        "order_hash": None,
        "corpus": "corpus",
        "settings": {},
        "files": {},
    } | facts


def leave_checkpoint(run: RunDirectory, step: int = 7, **facts: Any) -> None:
    """Writes a complete checkpoint without tensors."""
    run.checkpoint_folder(step).mkdir(parents=True)
    path = run.checkpoint_folder(step) / MANIFEST
    path.write_text(json.dumps(manifest(step=step, **facts)), encoding="utf-8")


def state(**facts: Any) -> dict[str, Any]:
    """Returns the contents of state.json."""
    return {"status": "running", "step": 0, "consumed_samples": 0, "stage": 0, "next": None} | facts


def coming(**facts: Any) -> dict[str, Any]:
    """Returns the `next` entry of state.json."""
    return {
        "stage": 1,
        "global_batch_size": 8,
        "num_nodes": 1,
        "command": "rampcli pretrain --factory x",
    } | facts


def failure(**facts: Any) -> dict[str, Any]:
    """Returns the `error` entry of state.json for a run that failed."""
    return {
        "message": "the disk is full",
        "set_by": [],
        "remedy": "a larger one",
        "exit_code": 1,
        "understood": True,
    } | facts


def chained_job(**facts: Any) -> dict[str, Any]:
    """Returns a job of slurm/jobs.json."""
    job = {
        "job": "7",
        "name": "run.stage0",
        "stages": [0],
        "num_nodes": 1,
        "global_batch_sizes": [4],
    }
    return job | {"script": "slurm/stage_0.sbatch", "dependency": None} | facts


def submit(run: RunDirectory) -> None:
    """Records the job of a run in slurm/jobs.json."""
    run.make_folder(run.path / "slurm")
    jobs = {"jobs": [chained_job()], "submitted": 1.0, "cancelled": False}
    run.write_json(run.path / "slurm/jobs.json", jobs)


def write_squeue(folder: Path, run: RunDirectory, reported: str) -> None:
    """Writes a program `squeue` that lists the job of a run in a state."""
    fields = ("7", reported, "run.stage0", "Priority", str(run.path.resolve()))
    program = folder / "squeue"
    program.write_text("#!/bin/sh\necho '" + "\x1f".join(fields) + "\x1e'\n")
    program.chmod(0o755)
