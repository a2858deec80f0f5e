"""The GPUs of this machine, and which of them a run may use."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rampcli.batch.quantities import counted
from rampcli.batch.training_plan import TrainingPlan
from rampcli.errors import UsageError
from rampcli.files.guarded_folder import private_folder
from rampcli.files.locks import hold
from rampcli.machine.gpus import visible_gpus
from rampcli.settings.config import Config
from rampcli.settings.trainer import TrainerConfig


@contextmanager
def reserve_gpus(config: Config, plan: TrainingPlan) -> Iterator[list[str]]:
    """Reserves the GPUs that a run needs on this machine, and gives their names.

    No other run of this user gets these GPUs meanwhile. The list is empty on the CPU.

    Raises:
        UsageError: the run needs more GPUs than this machine has, or than other runs leave free.
    """
    needed = gpus_needed(config, plan)
    with ExitStack() as claims:
        gpus: list[str] = []
        locks = private_folder("gpus") if needed else Path()
        for gpu in visible_gpus() if needed else []:
            try:
                claims.enter_context(hold(locks / gpu.replace("/", "_")))
            except BlockingIOError:
                continue
            gpus.append(gpu)
            if len(gpus) == needed:
                break
        if len(gpus) < needed:
            raise UsageError(
                f"this run needs {counted(needed, 'GPU')}, but other runs use"
                f" {len(visible_gpus()) - len(gpus)} of the {counted(len(visible_gpus()), 'GPU')}"
                " on this machine",
                keys=(TrainerConfig.num_nodes, TrainerConfig.devices, TrainerConfig.accelerator),
                remedy="wait for the other runs, or use fewer GPUs",
            )
        yield gpus


def gpus_needed(config: Config, plan: TrainingPlan) -> int:
    """Returns how many GPUs of this machine the largest stage of a local run uses.

    The number is 0 if the run computes on the CPU.

    Raises:
        UsageError: `trainer.accelerator=gpu`, and this machine has too few GPUs.
    """
    if config.trainer.accelerator == "cpu":
        return 0
    needed = plan.largest_world_size + config.rl.rollout_ranks
    gpus = visible_gpus()
    if len(gpus) >= needed:
        return needed
    if config.trainer.accelerator == "auto":
        return 0
    nodes, devices = max(stage.num_nodes for stage in plan.stages), config.trainer.devices
    raise UsageError(
        f"this run needs {counted(needed, 'GPU')} ({counted(nodes, 'node')} of"
        f" {devices}), and this machine has {len(gpus)}",
        keys=(TrainerConfig.num_nodes, TrainerConfig.devices, TrainerConfig.accelerator),
        remedy="`rampcli plan` to see the plan, or a machine with the GPUs",
    )
