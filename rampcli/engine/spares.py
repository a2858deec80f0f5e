"""Ranks of an elastic run that its batch does not divide into: they wait, and leave with the others."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from rampcli.batch.training_plan import StagePlan
from rampcli.config.resolve import Resolved
from rampcli.config.schema import Config
from rampcli.config.splits import check_stages
from rampcli.engine.ranks import rank_variables
from rampcli.engine.stopping import STOP_SIGNALS, StopRequest
from rampcli.errors import EXIT_INTERRUPTED, UsageError
from rampcli.lifeline import SUPERVISOR
from rampcli.run_directory import STAGE_IS_OVER, RunDirectory

LOOK_EVERY_S = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Who trains, of the ranks that were started.

    Attributes:
        world_size: ranks that were started.
        training: so many of them, from rank 0 on.
        reason: why the others do not; None where there are none.
    """

    world_size: int
    training: int
    reason: str | None

    @classmethod
    def of(cls, resolved: Resolved, *, consumed_samples: int, world_size: int) -> "Places":
        """The most ranks into which the batch divides, in each of the stages that these processes are to train."""
        stage = resolved.plan.stage_at(consumed_samples)
        groups = resolved.plan.stages_by_processes()
        stages = next(group[group.index(stage) :] for group in groups if stage in group)
        reason = None
        for training in range(world_size, 0, -1):
            try:
                check_world(resolved, stages, training)
            except UsageError as error:
                reason = reason or error.message
            else:
                return cls(world_size=world_size, training=training, reason=reason)
        return cls(world_size=world_size, training=0, reason=reason)


def is_elastic(config: Config) -> bool:
    """Whether agents that a supervisor has started may start this process anew in another world."""
    return config.launch.elastic and SUPERVISOR in os.environ


def check_world(resolved: Resolved, stages: tuple[StagePlan, ...], world_size: int) -> None:
    """Check that stages can be trained by so many ranks.

    Raises:
        UsageError: they cannot.
    """
    for stage in stages:
        batch = resolved.plan.batch_on(stage, world_size)
        there = replace(
            stage,
            num_nodes=-(-world_size // resolved.config.trainer.devices),
            world_size=world_size,
            data_parallel_size=batch.data_parallel_size,
            accumulate_grad_batches=batch.accumulate_grad_batches,
        )
        check_stages(resolved.config, [there])
        resolved.loading(there)


def take_place(run: RunDirectory, resolved: Resolved, stop: StopRequest) -> int | None:
    """Find this rank's place among those that the agents have started: None where it trains, an exit code once it need not wait longer."""
    if _is_over(run):  # since a node came or went
        return 0
    if stop.asked:
        return EXIT_INTERRUPTED
    place = rank_variables(os.environ)
    rank, world_size = int(place["RANK"]), int(place["WORLD_SIZE"])
    places = Places.of(resolved, consumed_samples=run.consumed_samples(), world_size=world_size)
    if rank == 0:
        _announce(run, places)
    if rank < places.training:
        os.environ["WORLD_SIZE"] = str(places.training)
        return None
    while not _is_over(run):
        if stop.asked:
            return EXIT_INTERRUPTED
        time.sleep(LOOK_EVERY_S)
    return 0


@contextmanager
def without_a_stop_request(stop: StopRequest) -> Iterator[None]:
    """Let signals end this process, which has nothing to save yet, and may wait for a rank that will never come."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    yield
    stop.listen()


def _announce(run: RunDirectory, places: Places) -> None:
    run.change_status("running")
    run.append_event("join", world_size=places.world_size, training_ranks=places.training)
    spare = places.world_size - places.training
    if spare:
        waiting = f"{spare} of {places.world_size} ranks wait{'s' if spare == 1 else ''}, and {places.training} train"
        run.append_event("spare_ranks", spare_ranks=spare, reason=f"{waiting}: {places.reason}")


def _is_over(run: RunDirectory) -> bool:
    return (run.read_state() or {}).get("status") in STAGE_IS_OVER
