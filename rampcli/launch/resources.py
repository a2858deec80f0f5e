"""What this machine has to run on."""

import os
from pathlib import Path

from rampcli.batch.training_plan import TrainingPlan
from rampcli.config.choices import Accelerator
from rampcli.config.schema import Config
from rampcli.errors import UsageError


def visible_gpus() -> list[str]:
    """The GPUs that a process started here may use, as CUDA_VISIBLE_DEVICES would name them."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name for name in chosen.split(",") if name.strip()]
    return [str(index) for index in range(sum(path.name[6:].isdigit() for path in Path("/dev").glob("nvidia*")))]


def gpus_for(config: Config, plan: TrainingPlan) -> list[str]:
    """The GPUs that the run will use on this machine, in order; none where it runs on the CPU.

    Raises:
        UsageError: the run wants GPUs, and this machine has too few.
    """
    if config.trainer.accelerator is Accelerator.cpu:
        return []
    wanted = max(stage.world_size for stage in plan.stages)
    gpus = visible_gpus()
    if len(gpus) >= wanted:
        return gpus[:wanted]
    if config.trainer.accelerator is Accelerator.auto:
        return []
    nodes, devices = max(stage.num_nodes for stage in plan.stages), config.trainer.devices
    raise UsageError(
        f"this run needs {wanted} GPUs ({nodes} node{'s' if nodes > 1 else ''} of {devices}), and this machine has {len(gpus)}",
        keys=("trainer.num_nodes", "trainer.devices", "trainer.accelerator"),
        remedy="--dry-run to see the plan, or a machine with the GPUs",
    )
