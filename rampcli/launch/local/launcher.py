"""The launcher `local`: one process per rank, on this machine."""

import signal
import socket
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from rampcli.errors import EXIT_INTERRUPTED
from rampcli.launch.elastic import World
from rampcli.launch.environment import check_chosen_gpus, check_variables
from rampcli.launch.observer import Observers
from rampcli.launch.protocol import Launch, Launcher, Outcome, StartRanks
from rampcli.launch.resources import gpus_needed, reserve_gpus
from rampcli.launch.supervise import Supervisor
from rampcli.launch.workers import (
    WORKER,
    Workers,
    start_process,
    worker_environment,
    worker_program,
)
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
            exit_code=_exit_code(state, signals),
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


def _exit_code(state: dict[str, Any], signals: StopSignals) -> int:
    code = exit_code_after(signals)
    return EXIT_INTERRUPTED if code == 0 and state["status"] == PREEMPTED else code


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
            config: configuration of the run. Its rollout ranks come after those of the world.
            world: ranks to start, and the nodes they are on.
            log: file in the run's log folder that receives the workers' output.
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
