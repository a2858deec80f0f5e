"""Runs a ramp: workers for stage after stage, until the run is complete or somebody stops it."""

import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rampcli.batch.training_plan import StagePlan
from rampcli.config.resolve import Resolved
from rampcli.errors import EXIT_CTRL_C, RampcliError
from rampcli.launch.failures import noting_failure
from rampcli.launch.observer import Feed, Observer
from rampcli.launch.restarts import Restarts
from rampcli.launch.workers import Change, Workers
from rampcli.lifeline import StopSignals
from rampcli.locks import is_held
from rampcli.run_directory import COMPLETE, PREEMPTED, STAGE_BOUNDARY, STAGE_IS_OVER, RunDirectory

POLL_S = 0.1
AHEAD_S = 30.0
"""So long before a stage ends, about, the workers of the next are started."""
OLD_WORKERS_S = 60.0
"""How long workers that nobody supervises any more may take to end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launched:
    """The workers of a stage, what they print and tell, how often some of them crashed, and the stage whose workers come after them."""

    stage: StagePlan
    log: Path
    feed: Feed
    restarts: Restarts
    workers: Workers
    coming: StagePlan | None


@dataclass(kw_only=True, slots=True)
class Supervisor:
    """Starts the workers of each stage, and starts them again where they crash.

    Attributes:
        resolved: what is trained.
        run: where.
        start: starts the workers of a stage, which print to a log.
        observer: is told about progress.
        signals: ask to stop.
        gpus: how many are used on this machine.
        starts_ahead: whether the workers of a stage are started before those of the stage before it end, which they wait for.
    """

    resolved: Resolved
    run: RunDirectory
    start: Callable[[StagePlan, Path], Workers]
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
            state = self.run.read_state() or {}
            while state["status"] != COMPLETE:
                state = self._run_stage(self.resolved.plan.stage_at(self.run.consumed_samples()))
                if state["status"] != STAGE_BOUNDARY or one_stage or self.signals.signal is not None:
                    break
            return state

    def _run_stage(self, stage: StagePlan) -> dict[str, Any]:
        launch = self.resolved.config.launch
        restarts = Restarts(max_restarts=launch.max_restarts, backoff_s=launch.backoff_s)
        log = self._log_of(stage)
        while True:
            self._wait_for_old_workers()
            if self.signals.signal is not None:
                return self._preempted()
            feed = Feed(self.run, self.observer)
            exit_code = self._run_workers(stage, log, feed, restarts)
            state = self.run.read_state() or {}
            if state["status"] in (*STAGE_IS_OVER, PREEMPTED) and not (launch.elastic and self._is_preempted_by_nobody(state)):
                return state
            if state["status"] == "failed" and state["error"]["understood"]:
                raise _as_said(state["error"], log)
            if self.signals.signal is not None:
                if feed.step is None:  # there was nothing to save yet
                    return self._preempted()
                raise self._unsaved(log)
            wait_s = restarts.after_crash(feed.step)
            said = state["error"]["message"] if state["status"] == "failed" else f"exit code {exit_code}"
            if isinstance(wait_s, str):
                raise _given_up(wait_s, said=said, log=log)
            reason = self._of_restart(stage, restarts, said=said, log=log)
            self.run.append_event("fault", reason=reason)
            self.observer.on_event({"event": "fault", "reason": reason})
            self._sleep(wait_s)

    def _is_preempted_by_nobody(self, state: dict[str, Any]) -> bool:
        """Whether it was a node that came or went for whom workers saved, and not the run that was to stop."""
        return state["status"] == PREEMPTED and self.signals.signal is None

    def _run_workers(self, stage: StagePlan, log: Path, feed: Feed, restarts: Restarts) -> int:
        self.run.change_status("running")
        self.observer.on_start(stage, gpus=self.gpus)
        self.run.append_event("launch", stage=stage.stage, num_nodes=stage.num_nodes, world_size=stage.world_size)
        workers = self._take_ahead(stage) or self.start(stage, log)
        coming = self._coming_after(stage)
        try:
            workers.let_train()
            exit_code = self._watch(Launched(stage=stage, log=log, feed=feed, restarts=restarts, workers=workers, coming=coming))
        finally:
            workers.end()
        self.run.append_event("exit", stage=stage.stage, exit_code=exit_code)
        feed.tell()
        return exit_code

    def _watch(self, launched: Launched) -> int:
        """Follow the workers to their end, and pass on what asks to stop."""
        workers, kill_at = launched.workers, None
        while (exit_code := workers.exit_code()) is None:
            time.sleep(POLL_S)
            if (change := workers.change()) is not None:
                self._take_note(change, launched)
            launched.feed.tell()
            self._look_ahead(launched)
            if self.signals.signal is not None and kill_at is None:
                workers.ask_to_stop()
                kill_at = time.monotonic() + self.resolved.config.launch.grace_s
            if self.signals.at_once or (kill_at is not None and time.monotonic() > kill_at):
                workers.kill()
        return exit_code

    def _look_ahead(self, launched: Launched) -> None:
        """Start the workers of the next stage once this one is about to end: while they import torch, it goes on."""
        row, coming = launched.feed.row, launched.coming
        if self._ahead or row is None or coming is None or self.signals.signal is not None:
            return
        if coming.first_sample - row["consumed_samples"] <= AHEAD_S * row["samples_per_s"]:
            self._ahead = (coming, self.start(coming, self._log_of(coming)))

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

    def _take_note(self, change: Change, launched: Launched) -> None:
        """Count what was lost, and have it brought back.

        Raises:
            RampcliError: that has been done too often.
        """
        feed, restarts = launched.feed, launched.restarts
        step = feed.step
        if change.begin_anew:
            feed.step = None
        for said, in_step in ((change.lost, None), (change.crash, step)):  # that a node is lost says nothing against a step
            if said is None:
                continue
            wait_s = restarts.after_crash(in_step)
            if isinstance(wait_s, str):
                launched.workers.end()  # before state.json says what they would write over
                raise _given_up(wait_s, said=said, log=launched.log)
            launched.workers.bring_back(wait_s)
            if said is change.crash:
                reason = self._of_restart(launched.stage, restarts, said=said, log=launched.log)
            else:
                reason = f"{said}; it is started again in {wait_s:g} s: {_number_of(restarts)} (log: {launched.log})"
            self.run.append_event("fault", reason=reason)

    def _wait_for_old_workers(self) -> None:
        """Those of a supervisor that was killed die with it; but the dying of a large process takes its time.

        Raises:
            RampcliError: they live.
        """
        until = time.monotonic() + OLD_WORKERS_S
        while is_held(self.run.workers_lock) and self.signals.signal is None:
            if time.monotonic() > until:
                raise RampcliError(
                    f"workers still train in {self.run.path}, and they are not of this command", remedy="end them, or wait for them"
                )
            time.sleep(POLL_S)

    def _log_of(self, stage: StagePlan) -> Path:
        return self.run.logs / f"stage_{stage.stage}.log"

    def _preempted(self) -> dict[str, Any]:
        state = {**(self.run.read_state() or {}), "status": PREEMPTED}
        self.run.write_state(state)
        return state

    def _sleep(self, wait_s: float) -> None:
        until = time.monotonic() + wait_s
        while time.monotonic() < until and self.signals.signal is None:
            time.sleep(POLL_S)

    def _of_restart(self, stage: StagePlan, restarts: Restarts, *, said: str, log: Path) -> str:
        saved = self.run.complete_checkpoints()
        back = f"step {saved[-1].step}" if saved else "the beginning"
        return f"the workers of stage {stage.stage} crashed ({said}; log: {log}); they start again from {back}: {_number_of(restarts)}"

    def _unsaved(self, log: Path) -> RampcliError:
        if self.signals.at_once:
            how = "were killed at the second signal"
        else:
            how = f"did not save within launch.grace_s={self.resolved.config.launch.grace_s:g} s, and were killed, or crashed"
        error = RampcliError(f"the workers {how}; the same command goes on from the last checkpoint (log: {log})")
        error.exit_code = EXIT_CTRL_C if self.signals.signal == signal.SIGINT else 1
        return error


def _number_of(restarts: Restarts) -> str:
    return f"restart {restarts.crashes} of at most {restarts.max_restarts}"


def _given_up(why: str, *, said: str, log: Path) -> RampcliError:
    return RampcliError(
        f"the workers are not started again: {why} ({said}; log: {log})",
        remedy="what the log says; then the same command goes on from the last checkpoint",
    )


def _as_said(said: dict[str, Any], log: Path) -> RampcliError:
    """What a worker that failed said of it."""
    error = RampcliError(f"the workers failed: {said['message']} (log: {log})", remedy=said["remedy"], set_by=said["set_by"])
    error.exit_code = said["exit_code"]
    return error
