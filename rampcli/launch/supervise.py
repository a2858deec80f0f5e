"""Runs a ramp: workers for stage after stage, until the run is complete or somebody stops it."""

import math
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rampcli.batch.training_plan import StagePlan
from rampcli.checkpoint.manifest import complete_checkpoints, consumed_samples
from rampcli.config.resolve import Resolved
from rampcli.errors import EXIT_CTRL_C, RampcliError
from rampcli.launch.elastic import Nodes, World
from rampcli.launch.failures import noting_failure
from rampcli.launch.observer import Feed, Observer
from rampcli.launch.printed import Printed
from rampcli.launch.restarts import Restarts
from rampcli.launch.workers import Workers
from rampcli.lifeline import StopSignals
from rampcli.locks import is_held
from rampcli.run_directory import (
    BEFORE_THE_START,
    COMPLETE,
    PREEMPTED,
    STAGE_BOUNDARY,
    STAGE_IS_OVER,
    RunDirectory,
)

POLL_S = 0.1
AHEAD_S = 30.0
"""So long before a stage ends, about, the workers of the next are started."""
OLD_WORKERS_S = 60.0
"""How long workers that nobody supervises any more may take to end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launched:
    """The workers of a stage, and what is to come of them.

    Attributes:
        world: their ranks.
        nodes: the nodes of the stage, some of which may be lost.
        feed: passes on the rows that they write.
        workers: their processes.
        coming: the next stage, if its workers are to be started while these live.
    """

    world: World
    nodes: Nodes
    feed: Feed
    workers: Workers
    coming: StagePlan | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How workers ended.

    Attributes:
        exit_code: 0, or that of a worker that failed.
        killed: ranks that a signal ended, and its name; not those that the supervisor ended.
        makes_larger: they were asked to end so that a larger world can begin.
        printed: to their log.
    """

    exit_code: int
    killed: dict[int, str]
    makes_larger: bool
    printed: Printed

    def why(self, state: dict[str, Any]) -> str:
        """Returns why they failed, in their own words if they have any, and where their log is."""
        said = state["error"]["message"] if state["status"] == "failed" else None
        # Other ranks only say that they miss one that was killed.
        killed = " and ".join(
            f"rank {rank} was killed by {name}" for rank, name in self.killed.items()
        )
        return f"{killed or said or f'exit code {self.exit_code}'}; {self.printed.place(quotes=said is None)}"


@dataclass(kw_only=True, slots=True)
class Supervisor:
    """Starts the workers of each stage, and starts them again where they crash.

    Attributes:
        resolved: what is trained.
        run: where.
        start: starts the ranks of a world, which print to a log.
        observer: is told about progress.
        signals: ask to stop.
        gpus: how many are used on this machine.
        starts_ahead: whether the workers of a stage are started before those of the stage before it end, which they wait for.
    """

    resolved: Resolved
    run: RunDirectory
    start: Callable[[World, Path], Workers]
    observer: Observer
    signals: StopSignals
    gpus: int = 0
    starts_ahead: bool = False
    _ahead: tuple[StagePlan, Workers] | None = None

    def go_through(self, *, one_stage: bool) -> dict[str, Any]:
        """Run stage after stage, or one set of processes; returns the last state.json.

        Raises:
            RampcliError: the workers failed; with what they said.
        """
        with noting_failure(self.run), ExitStack() as at_the_end:
            at_the_end.callback(self._take_ahead, None)
            self._wait_for_old_workers()  # where nobody supervises them, they may go on to another stage, or to the end
            state = self.run.read_state() or BEFORE_THE_START
            while state["status"] != COMPLETE:
                state = self._run_stage(self.resolved.plan.stage_at(consumed_samples(self.run)))
                if (
                    state["status"] != STAGE_BOUNDARY
                    or one_stage
                    or self.signals.signal is not None
                ):
                    break
            return state

    def _run_stage(self, stage: StagePlan) -> dict[str, Any]:
        launch = self.resolved.config.launch
        restarts = Restarts(max_restarts=launch.max_restarts, backoff_s=launch.backoff_s)
        nodes = Nodes(resolved=self.resolved, run=self.run, stage=stage)
        log = self._log_of(stage)
        while True:
            self._wait_for_old_workers()
            while (world := nodes.world()) is None and self.signals.signal is None:
                time.sleep(POLL_S)
            if world is None or self.signals.signal is not None:
                return self._preempted()
            feed = Feed(self.run, self.observer)
            ending = self._run_workers(stage, world, nodes, feed)
            state = self.run.read_state() or BEFORE_THE_START
            was_asked = self.signals.signal is not None
            if state["status"] in STAGE_IS_OVER or (
                state["status"] == PREEMPTED and (was_asked or not ending.makes_larger)
            ):
                return state
            if state["status"] == "failed" and state["error"]["understood"]:
                raise _as_said(state["error"], log)
            if was_asked:
                if feed.step is None:  # there was nothing to save yet
                    return self._preempted()
                raise self._unsaved(ending.printed)
            if not ending.makes_larger:
                self._after_failure(
                    ending, world, nodes, restarts, step=feed.step, why=ending.why(state)
                )

    def _run_workers(self, stage: StagePlan, world: World, nodes: Nodes, feed: Feed) -> Ending:
        self.run.change_status("running")
        self.observer.on_start(stage, gpus=self.gpus)
        self.run.append_event(
            "launch", stage=stage.stage, num_nodes=len(world.nodes), world_size=world.ranks
        )
        if world.reason is not None:
            self.run.append_event("spare_ranks", spare_ranks=world.spare_ranks, reason=world.reason)
        log = self._log_of(stage)
        printed = Printed(log)
        workers = self._take_ahead(stage) or self.start(world, log)
        coming = self._coming_after(stage)
        try:
            workers.let_train()
            makes_larger = self._watch(
                Launched(world=world, nodes=nodes, feed=feed, workers=workers, coming=coming)
            )
            exit_code, killed = workers.exit_code() or 0, workers.killed()
        finally:
            workers.end()
        self.run.append_event("exit", stage=stage.stage, exit_code=exit_code)
        feed.tell()
        return Ending(
            exit_code=exit_code, killed=killed, makes_larger=makes_larger, printed=printed
        )

    def _watch(self, launched: Launched) -> bool:
        """Follow the workers to their end, and ask them to stop if it is time; returns whether that was to make the world larger."""
        workers, kill_at, makes_larger = launched.workers, math.inf, False
        while workers.exit_code() is None:
            time.sleep(POLL_S)
            launched.feed.tell()
            self._look_ahead(launched)
            makes_larger = makes_larger or (
                self.signals.signal is None and launched.nodes.make_larger(launched.world)
            )
            if kill_at == math.inf and (makes_larger or self.signals.signal is not None):
                workers.ask_to_stop()
                kill_at = time.monotonic() + self.resolved.config.launch.grace_s
                if makes_larger and launched.feed.step is None:
                    workers.kill()  # they have nothing to save, and would learn that they are to stop only when they train
            if self.signals.at_once or time.monotonic() > kill_at:
                workers.kill()
        return makes_larger

    def _look_ahead(self, launched: Launched) -> None:
        """Start the workers of the next stage once this one is about to end: while they import torch, it goes on."""
        row, coming = launched.feed.row, launched.coming
        if self._ahead or row is None or coming is None or self.signals.signal is not None:
            return
        if coming.first_sample - row["consumed_samples"] <= AHEAD_S * row["samples_per_s"]:
            self._ahead = (coming, self.start(World.planned(coming), self._log_of(coming)))

    def _coming_after(self, stage: StagePlan) -> StagePlan | None:
        """The stage whose workers are to be started while those of this one live; None where there is none."""
        groups = self.resolved.plan.stages_by_processes() if self.starts_ahead else []
        return next((after[0] for group, after in pairwise(groups) if stage in group), None)

    def _take_ahead(self, stage: StagePlan | None) -> Workers | None:
        """The workers that were started ahead, if they are of this stage and live; otherwise they end, if there are any."""
        if self._ahead is None:
            return None
        (of, workers), self._ahead = self._ahead, None
        if of is stage and workers.exit_code() is None:
            return workers
        workers.end()
        return None

    def _after_failure(
        self,
        ending: Ending,
        world: World,
        nodes: Nodes,
        restarts: Restarts,
        *,
        step: int | None,
        why: str,
    ) -> None:
        """Say that workers crashed, or that nodes are lost, and wait for the next start.

        Raises:
            RampcliError: the workers are not started again.
        """
        launch, devices = self.resolved.config.launch, self.resolved.config.trainer.devices
        lost = (
            {world.nodes[rank // devices]: name for rank, name in ending.killed.items()}
            if launch.elastic
            else {}
        )
        wait_s = restarts.after_loss() if lost else restarts.after_crash(step)
        if isinstance(wait_s, str):
            raise _given_up(wait_s, why=why)
        number = f"restart {restarts.crashes} of at most {restarts.max_restarts}"
        if lost:
            said = " and ".join(f"node {node} (killed by {name})" for node, name in lost.items())
            others = nodes.lose(lost, wait_s=wait_s)
            reason = f"lost {said}; {others}; it is started again in {wait_s:g} s: {number} ({ending.printed.place(quotes=False)})"
        else:
            saved = complete_checkpoints(self.run)
            back = f"step {saved[-1].step}" if saved else "the beginning"
            reason = f"the workers of stage {nodes.stage.stage} crashed ({why}); they start again from {back}: {number}"
        self.run.append_event("fault", reason=reason)
        self.observer.on_event({"event": "fault", "reason": reason})
        if not lost:
            self._sleep(wait_s)

    def _wait_for_old_workers(self) -> None:
        """Those of a supervisor that was killed die with it; but the dying of a large process takes its time.

        Raises:
            RampcliError: they live.
        """
        until = time.monotonic() + OLD_WORKERS_S
        while is_held(self.run.workers_lock) and self.signals.signal is None:
            if time.monotonic() > until:
                raise RampcliError(
                    f"workers still train in {self.run.path}, and they are not of this command",
                    remedy="end them, or wait for them",
                )
            time.sleep(POLL_S)

    def _log_of(self, stage: StagePlan) -> Path:
        return self.run.logs / f"stage_{stage.stage}.log"

    def _preempted(self) -> dict[str, Any]:
        state = {**(self.run.read_state() or BEFORE_THE_START), "status": PREEMPTED}
        self.run.write_state(state)
        return state

    def _sleep(self, wait_s: float) -> None:
        until = time.monotonic() + wait_s
        while time.monotonic() < until and self.signals.signal is None:
            time.sleep(POLL_S)

    def _unsaved(self, printed: Printed) -> RampcliError:
        if self.signals.at_once:
            how = "were killed at the second signal"
        else:
            how = f"did not save within launch.grace_s={self.resolved.config.launch.grace_s:g} s, and were killed, or crashed"
        error = RampcliError(
            f"the workers {how}; the same command goes on from the last checkpoint ({printed.place()})"
        )
        error.exit_code = EXIT_CTRL_C if self.signals.signal == signal.SIGINT else 1
        return error


def _given_up(reason: str, *, why: str) -> RampcliError:
    return RampcliError(
        f"the workers are not started again: {reason} ({why})",
        remedy="what the log says; then the same command goes on from the last checkpoint",
    )


def _as_said(said: dict[str, Any], log: Path) -> RampcliError:
    """What a worker that failed said of it."""
    error = RampcliError(
        f"the workers failed: {said['message']} (log: {log})",
        remedy=said["remedy"],
        set_by=said["set_by"],
    )
    error.exit_code = said["exit_code"]
    return error
