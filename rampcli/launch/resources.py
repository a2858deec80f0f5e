"""What this machine has to run on."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rampcli.batch.training_plan import TrainingPlan
from rampcli.config.choices import Accelerator, Launcher
from rampcli.config.schema import Config
from rampcli.errors import UsageError
from rampcli.locks import hold
from rampcli.own_folder import private_folder


def visible_gpus() -> list[str]:
    """The GPUs that a process started here may use, as CUDA_VISIBLE_DEVICES would name them."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name for name in chosen.split(",") if name.strip()]
    return [
        str(index)
        for index in range(sum(path.name[6:].isdigit() for path in Path("/dev").glob("nvidia*")))
    ]


@contextmanager
def claimed_gpus(config: Config, plan: TrainingPlan) -> Iterator[list[str]]:
    """The GPUs that the run uses on this machine, which no other run of this user is given meanwhile; none where it runs on the CPU.

    Raises:
        UsageError: the run wants GPUs, and this machine has too few, or others use them.
    """
    wanted = gpus_wanted(config, plan)
    with ExitStack() as claims:
        gpus: list[str] = []
        locks = private_folder("gpus") if wanted else Path()
        for gpu in visible_gpus() if wanted else []:
            try:
                claims.enter_context(hold(locks / gpu.replace("/", "_")))
            except BlockingIOError:
                continue
            gpus.append(gpu)
            if len(gpus) == wanted:
                break
        if len(gpus) < wanted:
            raise UsageError(
                f"this run needs {count_gpus(wanted)}, and of the {len(visible_gpus())} here other runs use all but {len(gpus)}",
                keys=("trainer.num_nodes", "trainer.devices", "trainer.accelerator"),
                remedy="wait for them, or fewer GPUs",
            )
        yield gpus


def gpus_wanted(config: Config, plan: TrainingPlan) -> int:
    """How many GPUs of this machine the run's largest stage uses; 0 where it runs on the CPU, or on other machines.

    Raises:
        UsageError: the run wants GPUs, and this machine has too few.
    """
    if (
        config.trainer.accelerator is Accelerator.cpu
        or config.launch.launcher is not Launcher.local
    ):
        return 0
    wanted = plan.largest_world_size
    gpus = visible_gpus()
    if len(gpus) >= wanted:
        return wanted
    if config.trainer.accelerator is Accelerator.auto:
        return 0
    nodes, devices = max(stage.num_nodes for stage in plan.stages), config.trainer.devices
    raise UsageError(
        f"this run needs {count_gpus(wanted)} ({nodes} node{'s' if nodes > 1 else ''} of {devices}), and this machine has {len(gpus)}",
        keys=("trainer.num_nodes", "trainer.devices", "trainer.accelerator"),
        remedy="--dry-run to see the plan, or a machine with the GPUs",
    )


def count_gpus(gpus: int) -> str:
    """In words."""
    return f"{gpus} GPU{'s' if gpus > 1 else ''}"
