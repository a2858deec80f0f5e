"""Supervises a ramp: starts workers stage by stage until the run completes or is stopped."""

import math
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rampcli.batch.training_plan import StagePlan
from rampcli.errors import EXIT_CTRL_C, RampcliError
from rampcli.files.locks import is_held
from rampcli.launch.elastic import Nodes, World
from rampcli.launch.observer import Feed, Observer
from rampcli.launch.protocol import StartRanks
from rampcli.launch.trackers import Trackers
from rampcli.launch.workers import POLL_S, WorkerLog, Workers, WorkersExit
from rampcli.machine.host import count_oom_kills
from rampcli.machine.lifeline import StopSignals
from rampcli.planning.out_of_memory import out_of_memory
from rampcli.planning.run_plan import Resolved
from rampcli.runs.directory import (
    BEFORE_THE_START,
    COMPLETE,
    PREEMPTED,
    STAGE_BOUNDARY,
    STAGE_IS_OVER,
    RunDirectory,
    event_row,
)
from rampcli.runs.heartbeats import LEAST_BEAT_S, read_ranks, touch
from rampcli.runs.manifest import complete_checkpoints, consumed_samples

LONGEST_BACKOFF_S = 60.0
NEXT_STAGE_LEAD_S = 30.0
"""Start the next stage's workers this many seconds before the current stage ends, so that they
have imported torch by then."""
ORPHANS_EXIT_S = 60.0
"""Seconds to wait for orphaned workers to exit."""


@dataclass(slots=True)
class Restarts:
    """Counts the crashes of a stage.

    Attributes:
        backoff_s: seconds before the first restart. Each later wait is twice as long, up to
            `LONGEST_BACKOFF_S`.
        crashes: crashes and lost nodes so far.
    """

    max_restarts: int
    backoff_s: float
    crashes: int = 0
    _last_crash: str | None = None

    def after(self, step: int | None, *, has_lost_node: bool) -> float | str:
        """Returns the seconds to wait before the next start, or the reason for giving up.

        Args:
            step: steps taken when the workers crashed; None if training had not begun.
            has_lost_node: a node was lost, for which no step is to blame.
        """
        before, place = self._last_crash, "before the first step"
        if step is not None:
            place = f"at step {step + 1}"
        self._last_crash = None if has_lost_node else place
        self.crashes += 1
        if before is not None and before == self._last_crash:
            return f"workers crashed {before} on two consecutive starts"
        if self.crashes > self.max_restarts:
            return (
                f"workers crashed {self.crashes} time{'s' if self.crashes > 1 else ''}"
                f", with launch.max_restarts={self.max_restarts}"
            )
        return min(LONGEST_BACKOFF_S, self.backoff_s * 2.0 ** (self.crashes - 1))


@dataclass(kw_only=True, slots=True)
class Attempt:
    """One start of the workers of a stage.

    Attributes:
        feed: passes the rows that the workers write to the observer.
        to_grow: True if they are stopped so that a larger world can start.
    """

    nodes: Nodes
    world: World
    feed: Feed
    log: WorkerLog
    to_grow: bool = False


@dataclass(kw_only=True, slots=True)
class Supervisor:
    """Starts the workers of each stage and restarts them after a crash.

    Attributes:
        observer: receives progress.
        signals: stop signals received so far; the supervisor stops at the next safe point.
        gpus: number of GPUs of this machine that the run uses.
        starts_early: start the next stage's workers before the current stage ends.
    """

    resolved: Resolved
    run: RunDirectory
    start: StartRanks
    observer: Observer
    signals: StopSignals
    gpus: int = 0
    starts_early: bool = False
    _early: tuple[StagePlan, Workers] | None = None
    _trackers: Trackers | None = None

    def run_stages(self, *, one_stage: bool, one_phase: bool = False) -> dict[str, Any]:
        """Runs the remaining stages, those of one group of processes, or those of one phase.

        Returns the final contents of state.json.

        Raises:
            RampcliError: the workers failed; the message quotes their error or their log.
        """
        # A failure is recorded before the trackers log the last rows, which takes a while.
        with ExitStack() as at_exit, self.run.recording_failure():
            at_exit.callback(self._take_early_workers, None)
            # Orphaned workers may still reach the next stage, or the end.
            wait_for_orphans(self.run, self.signals)
            self._trackers = at_exit.enter_context(
                Trackers(
                    self.run,
                    self.resolved.config.logging.trackers,
                    self.observer,
                    self.signals,
                )
            )
            state = self.run.read_state() or BEFORE_THE_START
            while state["status"] != COMPLETE:
                stage = self.resolved.plan.stage_at(consumed_samples(self.run))
                state = self._run_stage(stage)
                if (
                    state["status"] != STAGE_BOUNDARY
                    or one_stage
                    or (one_phase and self._is_past_phase_of(stage))
                    or self.signals.signal is not None
                ):
                    break
            return state

    def _is_past_phase_of(self, stage: StagePlan) -> bool:
        return self.resolved.at(consumed_samples(self.run)) is not self.resolved.of(stage)

    def _run_stage(self, stage: StagePlan) -> dict[str, Any]:
        """Runs a stage, with restarts, until it ends or the run stops; returns state.json."""
        launch = self.resolved.config.launch
        restarts = Restarts(max_restarts=launch.max_restarts, backoff_s=launch.backoff_s)
        nodes = Nodes(resolved=self.resolved, run=self.run, stage=stage)
        while True:
            wait_for_orphans(self.run, self.signals)
            while (world := nodes.world()) is None and self.signals.signal is None:
                time.sleep(POLL_S)
            if world is None or self.signals.signal is not None:
                return self._write_preempted()
            attempt = Attempt(
                nodes=nodes,
                world=world,
                feed=Feed(self.run, self.observer),
                log=WorkerLog(self._log_of(stage)),
            )
            ended = self._run_workers(stage, attempt)
            state = self.run.read_state() or BEFORE_THE_START
            was_asked = self.signals.signal is not None
            if state["status"] in STAGE_IS_OVER or (
                state["status"] == PREEMPTED
                and (was_asked or not (attempt.to_grow or ended.had_not_saved))
            ):
                return state
            if state["status"] == "failed" and state["error"]["understood"]:
                raise _worker_error(state["error"], attempt.log.path)
            if ranks := ended.ranks_out_of_memory():
                raise self._out_of_memory(ranks, attempt)
            if was_asked:
                if attempt.feed.step is None:  # training had not begun: there was nothing to save
                    return self._write_preempted()
                raise self._not_saved(attempt.log)
            if not attempt.to_grow:
                self._handle_failure(attempt, ended, restarts, cause=ended.cause(state, launch))

    def _run_workers(self, stage: StagePlan, attempt: Attempt) -> WorkersExit:
        """Starts the workers of a stage and waits until they have ended."""
        world, log = attempt.world, attempt.log
        self.run.change_status("running")
        self.observer.on_start(stage, world, gpus=self.gpus)
        self.run.append_event(
            "launch", stage=stage.stage, num_nodes=len(world.nodes), world_size=world.ranks
        )
        if world.reason is not None:
            self.run.append_event("spare_ranks", spare_ranks=world.spare_ranks, reason=world.reason)
        oom_kills = count_oom_kills()
        workers = self._take_early_workers(stage) or self.start(self.run, world, log.path)
        try:
            workers.begin_training()
            has_killed = self._watch(attempt, workers)
            exit_code, killed = workers.exit_code() or 0, {} if has_killed else workers.killed()
            status = (self.run.read_state() or BEFORE_THE_START)["status"]
            behind = read_ranks(self.run).behind
        finally:
            workers.end()
            with suppress(OSError, RampcliError):  # those of ranks that were killed
                self.run.remove_tree(self.run.heartbeats)
        self.run.append_event("exit", stage=stage.stage, exit_code=exit_code)
        attempt.feed.poll()
        oom_kills = count_oom_kills() - oom_kills
        return WorkersExit(
            exit_code=exit_code,
            killed=killed,
            had_not_saved=bool(killed) and status != PREEMPTED,
            oom_kills=oom_kills,
            log=log,
            late="".join(f"; rank {each.rank} on {each.host} was {each.doing}" for each in behind),
        )

    def _watch(self, attempt: Attempt, workers: Workers) -> bool:
        """Waits for the workers to end, and stops them on a signal or when nodes return.

        Returns whether they had to be killed.
        """
        kill_at, has_killed, touch_at = math.inf, False, 0.0
        groups = self.resolved.plan.stages_by_processes() if self.starts_early else []
        following = (later[0] for group, later in pairwise(groups) if attempt.nodes.stage in group)
        next_stage = next(following, None)
        while workers.exit_code() is None:
            time.sleep(POLL_S)
            if time.monotonic() >= touch_at:
                touch_at = time.monotonic() + LEAST_BEAT_S
                touch(self.run)
            attempt.feed.poll()
            if self._trackers is not None:
                self._trackers.poll()
            self._start_early(next_stage, attempt.feed.row)
            was_asked = self.signals.signal is not None
            attempt.to_grow = attempt.to_grow or (
                not was_asked and attempt.nodes.can_grow(attempt.world)
            )
            if kill_at == math.inf and (attempt.to_grow or was_asked):
                workers.ask_to_stop()
                kill_at = time.monotonic() + self.resolved.config.launch.grace_s
                if attempt.to_grow and attempt.feed.step is None:
                    # They have nothing to save, and notice a stop request only once they train.
                    kill_at = 0.0
            if self.signals.at_once or time.monotonic() > kill_at:
                has_killed = True
                workers.kill()
        return has_killed

    def _start_early(self, stage: StagePlan | None, row: dict[str, Any] | None) -> None:
        """Starts the workers of the next stage once the current one is about to end."""
        if self._early or row is None or stage is None or self.signals.signal is not None:
            return
        if stage.first_sample - row["consumed_samples"] <= NEXT_STAGE_LEAD_S * row["samples_per_s"]:
            self._early = (stage, self.start(self.run, World.planned(stage), self._log_of(stage)))

    def _take_early_workers(self, stage: StagePlan | None) -> Workers | None:
        """Returns the workers that were started early if they belong to `stage` and still run.

        Other workers that were started early are ended.
        """
        if self._early is None:
            return None
        (early_stage, workers), self._early = self._early, None
        if early_stage is stage and workers.exit_code() is None:
            return workers
        workers.end()
        return None

    def _handle_failure(
        self, attempt: Attempt, ended: WorkersExit, restarts: Restarts, *, cause: str
    ) -> None:
        """Reports a crash or lost nodes, and waits until the workers may be restarted.

        Nodes count as lost in an elastic run only; `Nodes` waits for them to return.
        """
        launch, devices = self.resolved.config.launch, self.resolved.config.trainer.devices
        killed = ended.killed_from_outside.items() if launch.elastic else ()
        lost = {attempt.world.nodes[rank // devices]: name for rank, name in killed}
        wait_s = restarts.after(attempt.feed.step, has_lost_node=bool(lost))
        if isinstance(wait_s, str):
            raise RampcliError(
                f"giving up: {wait_s} ({cause})",
                remedy=f"{ended.remedy(launch)}; the same command then resumes from the last"
                " checkpoint",
            )
        restart = f"restart {restarts.crashes} of at most {restarts.max_restarts}"
        if lost:
            names = " and ".join(f"node {node} (killed by {name})" for node, name in lost.items())
            reason = (
                f"lost {names}; {attempt.nodes.mark_lost(lost, wait_s=wait_s)};"
                f" restarting {'it' if len(lost) == 1 else 'them'} in {wait_s:g} s:"
                f" {restart} ({attempt.log.describe(quote=False)})"
            )
        else:
            saved = complete_checkpoints(self.run)
            origin = f"step {saved[-1].step}" if saved else "the beginning"
            reason = f"the workers crashed ({cause}); restarting from {origin}: {restart}"
        row = event_row("fault", reason=reason)
        self.run.append_row(self.run.events, row)
        self.observer.on_event(row)
        until = time.monotonic() + (0 if lost else wait_s)
        while time.monotonic() < until and self.signals.signal is None:
            time.sleep(POLL_S)

    def _log_of(self, stage: StagePlan) -> Path:
        return self.run.logs / f"stage_{stage.stage}.log"

    def _write_preempted(self) -> dict[str, Any]:
        """Sets the status in state.json to "preempted", and returns its contents."""
        state = {**(self.run.read_state() or BEFORE_THE_START), "status": PREEMPTED}
        self.run.write_state(state)
        return state

    def _out_of_memory(self, ranks: Sequence[int], attempt: Attempt) -> RampcliError:
        row = attempt.feed.row
        consumed = row["consumed_samples"] if row else consumed_samples(self.run)
        killed = f"rank{'s' if len(ranks) > 1 else ''} {' and '.join(map(str, ranks))}"
        return out_of_memory(
            self.resolved,
            consumed_samples=consumed,
            reason=f"the workers failed: their host ran out of memory and killed {killed}"
            f" ({attempt.log.describe(quote=False)})",
        )

    def _not_saved(self, log: WorkerLog) -> RampcliError:
        if self.signals.at_once:
            what = "were killed at the second signal"
        else:
            grace_s = self.resolved.config.launch.grace_s
            what = f"did not save within launch.grace_s={grace_s:g} s and were killed, or crashed"
        error = RampcliError(
            f"the workers {what}; the same command resumes from the last checkpoint"
            f" ({log.describe()})"
        )
        error.exit_code = EXIT_CTRL_C if self.signals.signal == signal.SIGINT else 1
        return error


def wait_for_orphans(run: RunDirectory, signals: StopSignals) -> None:
    """Waits for workers whose supervisor was killed; large processes take time to exit.

    Raises:
        RampcliError: they have not exited after `ORPHANS_EXIT_S`.
    """
    until = time.monotonic() + ORPHANS_EXIT_S
    while is_held(run.workers_lock) and signals.signal is None:
        if time.monotonic() > until:
            raise RampcliError(
                f"other workers are still training in {run.path}",
                remedy="end them, or wait for them to exit",
            )
        time.sleep(POLL_S)


def _worker_error(recorded: dict[str, Any], log: Path) -> RampcliError:
    """Returns the error that a worker recorded in state.json."""
    error = RampcliError(
        f"the workers failed: {recorded['message']} (log: {log})",
        remedy=recorded["remedy"],
        set_by=recorded["set_by"],
    )
    error.exit_code = recorded["exit_code"]
    return error
