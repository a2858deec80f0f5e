"""Compares the estimated memory of a run with that of its GPUs."""

from typing import Any

from rampcli.launch.doctor.check import Check, Status
from rampcli.launch.protocol import launcher_of
from rampcli.planning.run_plan import Resolved
from rampcli.planning.stage_memory import (
    device_memory_bytes,
    fullest_stage,
    shorten_bytes,
    stage_memory,
    usable_bytes,
)

REMEDY = "settings that fit, which `rampcli plan` names"


def check_memory(resolved: Resolved, facts: dict[str, Any]) -> Check:
    """Compares the estimate of the largest stage with the memory of a GPU.

    Args:
        resolved: the run.
        facts: the findings of `rampcli.worker.machine`. GPUs of this machine count more than
            `trainer.device_memory_gb` if the run uses them.
    """
    config, stage = resolved.config, fullest_stage(resolved)
    needed = stage_memory(resolved, stage).peak_bytes
    memory_bytes = device_memory_bytes(config)
    if config.trainer.accelerator != "cpu" and launcher_of(config).runs_here:
        memory_bytes = min(
            (gpu["memory_bytes"] for gpu in facts.get("gpus", [])), default=memory_bytes
        )
    if memory_bytes is None:
        finding = f"stage {stage.stage} needs {shorten_bytes(needed)} per process (estimate)"
        return Check("memory", Status.not_needed, finding)
    device = "process" if config.trainer.accelerator == "cpu" else "GPU"
    finding = (
        f"stage {stage.stage} needs {shorten_bytes(needed)} of {shorten_bytes(memory_bytes)}"
        f" per {device} (estimate)"
    )
    if needed <= usable_bytes(config, memory_bytes):
        return Check("memory", Status.ok, finding)
    return Check("memory", Status.warning, finding, REMEDY)
