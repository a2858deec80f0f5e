"""The launcher `local`: one process per rank, on this machine."""

import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from rampcli.batch.quantities import counted
from rampcli.batch.training_plan import TrainingPlan
from rampcli.errors import EXIT_INTERRUPTED, UsageError
from rampcli.files.guarded_folder import private_folder
from rampcli.files.locks import hold
from rampcli.launch.elastic import World
from rampcli.launch.environment import check_chosen_gpus, check_variables
from rampcli.launch.observer import Observers
from rampcli.launch.protocol import Launch, Launcher, Outcome, StartRanks
from rampcli.launch.supervise import Supervisor
from rampcli.launch.workers import (
    WORKER,
    Workers,
    start_process,
    worker_environment,
    worker_program,
)
from rampcli.machine.gpus import visible_gpus
from rampcli.machine.host import processors
from rampcli.machine.interpreter import python_command
from rampcli.machine.lifeline import (
    LISTENER,
    WAIT,
    StopSignals,
    catch_stop_signals,
    exit_code_after,
)
from rampcli.machine.network import LOOPBACK
from rampcli.planning.run_plan import Resolved
from rampcli.runs.directory import PREEMPTED, RunDirectory
from rampcli.settings.config import Config
from rampcli.settings.rewards import TRUSTED_REWARD
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
        gpus, visible = list[str](), visible_gpus() if needed else []
        locks = private_folder("gpus") if needed else Path()
        for gpu in visible:
            if len(gpus) < needed:
                with suppress(BlockingIOError):
                    claims.enter_context(hold(locks / gpu.replace("/", "_")))
                    gpus.append(gpu)
        if len(gpus) < needed:
            raise UsageError(
                f"this run needs {counted(needed, 'GPU')}, but other runs use"
                f" {len(visible) - len(gpus)} of the {counted(len(visible), 'GPU')} on this"
                " machine",
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


class LocalLauncher(Launcher):
    """Supervises workers on this machine; with `launch.elastic`, a stage outlives lost nodes."""

    runs_here = True

    def check(self, resolved: Resolved, /) -> None:
        """Checks this machine's GPUs, and the variables that its workers inherit."""
        if resolved.config.trainer.accelerator != "cpu":
            check_chosen_gpus()
        check_variables(on_gpus=gpus_needed(resolved.config, resolved.plan) > 0)

    def reserve_gpus(self, resolved: Resolved, /) -> AbstractContextManager[Sequence[str]]:
        """Reserves GPUs, so that concurrent runs of this user do not share them."""
        return reserve_gpus(resolved.config, resolved.plan)

    def start(self, launch: Launch, /) -> Outcome:
        """Trains the run until it completes, stops or fails."""
        with catch_stop_signals(launch.signals) as signals:
            observers = Observers(launch.observers, stop=partial(_ask_to_stop, signals))
            supervisor = Supervisor(
                resolved=launch.resolved,
                run=launch.directory,
                start=self.rank_starter(
                    launch.resolved,
                    worker_program(launch.resolved.config),
                    gpus=launch.gpus,
                ),
                observer=observers,
                signals=signals,
                gpus=len(launch.gpus),
                starts_early=not launch.one_stage,
            )
            state = supervisor.run_stages(one_stage=launch.one_stage, one_phase=launch.one_phase)
        return Outcome(
            run=launch.directory,
            status=state["status"],
            state=state,
            started=True,
            exit_code=exit_code_after(signals)
            or (EXIT_INTERRUPTED if state["status"] == PREEMPTED else 0),
            observer_error=observers.error,
        )

    def rank_starter(
        self, resolved: Resolved, program: str, /, *, gpus: Sequence[str] = ()
    ) -> StartRanks:
        """Returns a function that starts ranks on this machine."""
        return partial(LocalWorkers, resolved.config, program=program, gpus=gpus)


def _ask_to_stop(signals: StopSignals) -> None:
    if signals.signal is None:  # a second request would end the run at once
        signals.note(signal.SIGTERM)


class LocalWorkers(Workers):
    """One process per rank. Each imports what it needs, then waits for `begin_training`."""

    def __init__(
        self,
        config: Config,
        run: RunDirectory,
        world: World,
        log: Path,
        *,
        program: str = WORKER,
        gpus: Sequence[str] = (),
    ) -> None:
        """Starts the workers.

        Args:
            config: its rollout ranks come after those of the world.
            program: module that a rank runs. It takes the run directory and `WAIT`.
            gpus: GPUs of all nodes of the stage, node by node; empty on the CPU.
        """
        devices, ranks = config.trainer.devices, world.ranks + config.rl.rollout_ranks
        # Rank 0 inherits the listening socket, so no other process can take the port first.
        listener = socket.create_server((LOOPBACK, 0))
        # Without a number of threads, every rank would use all processors.
        environment = worker_environment(threads=max(1, processors() // ranks)) | {
            "MASTER_ADDR": LOOPBACK,
            "MASTER_PORT": str(listener.getsockname()[1]),
            "WORLD_SIZE": str(ranks),
            TRUSTED_REWARD: config.rl.reward,
        }
        processes = []
        for rank in range(ranks):
            node, device = world.nodes[rank // devices], rank % devices
            variables = {
                "RANK": str(rank),
                "LOCAL_RANK": str(device),
                "CUDA_VISIBLE_DEVICES": ",".join(gpus[node * devices : (node + 1) * devices]),
            }
            descriptors = [listener.fileno()] if rank == 0 else []
            if rank == 0:
                variables[LISTENER] = str(listener.fileno())
            processes.append(
                start_process(
                    python_command(program, str(run.path), WAIT),
                    run,
                    log,
                    environment | variables,
                    has_input=True,
                    descriptors=descriptors,
                )
            )
        super().__init__(processes, listener)
        self.waiting = True

    def begin_training(self) -> None:
        """Tells the waiting workers to train."""
        self.waiting = False
        for process in self.processes:
            assert process.stdin is not None
            # A worker that has already exited is noticed by its exit code.
            with suppress(BrokenPipeError), process.stdin:
                process.stdin.write(f"{time.time()}\n".encode())

    def ask_to_stop(self) -> None:
        """Asks training workers to save and exit. Kills waiting ones: they have nothing to save."""
        if self.waiting:
            self.kill()
        else:
            super().ask_to_stop()


LAUNCHER = LocalLauncher()
