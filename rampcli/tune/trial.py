"""One trial: ranks that time a micro batch size, and the verdict on it."""

import time
from dataclasses import dataclass, replace
from itertools import pairwise
from math import hypot, inf
from pathlib import Path

from rampcli.batch.plan import MICRO_KEY
from rampcli.errors import RampcliError
from rampcli.launch.elastic import World
from rampcli.launch.protocol import StartRanks
from rampcli.launch.run import write_run_files
from rampcli.launch.supervise import wait_for_orphans
from rampcli.launch.workers import POLL_S, WorkerLog, Workers, WorkersExit
from rampcli.machine.host import count_oom_kills
from rampcli.machine.lifeline import StopSignals
from rampcli.planning.run_plan import Resolved, run_plan
from rampcli.runs.directory import BEFORE_THE_START, TUNE_FOLDER, RunDirectory
from rampcli.runs.rows import read_rows
from rampcli.settings.launch import LaunchConfig
from rampcli.tune.median import FEWEST, Median, median_of
from rampcli.tune.sizes import Candidate, trial_config
from rampcli.tune.trial_files import STACK_SIGNAL, Effort, TrialDirectory, TrialOrder

FITS, OUT_OF_MEMORY, THRASHES, TIMED_OUT = "fits", "out of memory", "thrashes", "timed out"
"""Verdicts on a micro batch size."""
RANK = "rampcli.tune.rank"
"""Program of a rank."""
START_S = 300.0
"""Time that ranks may take to start, besides the time of the trial: a cluster may first have to
end the ranks of the trial before, or to load a container."""
STACKS_S = 10.0
"""Longest time that ranks get to write their stacks before they are killed."""
MOST_FAULTS_PER_STEP = 10
"""Pages that a rank may read from the disk in a step. More are a sign that memory is short."""
MOST_SWAPPED_BYTES = 2**24
MOST_RANKS_SHOWN = 4
DIAGNOSE_S = 120.0
"""A diagnosis ends after this time, but not before `FEWEST` rounds."""
MAIN_THREAD = "Current thread"
"""Beginning of the line above the main thread's stack, innermost frame first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """The outcome of a trial.

    Attributes:
        micro_batch_size: samples per data-parallel rank per forward and backward pass.
        verdict: `FITS`, `OUT_OF_MEMORY`, `THRASHES` or `TIMED_OUT`.
        reason: why the size does not fit, or None if it does.
        accumulate_grad_batches: micro batches per rank and step of the run.
        medians: time of the steps that were timed, by micro batches per step.
        peak_memory_bytes: most memory that a rank has held, or None.
        device: rank 0's device, such as `cpu` or `cuda:0`, or None if no rank has started.
        timeout_s: time limit of the trial if it timed out, else None.
    """

    micro_batch_size: int
    verdict: str
    reason: str | None
    world_size: int
    data_parallel_size: int
    accumulate_grad_batches: int
    medians: dict[int, Median]
    peak_memory_bytes: int | None
    device: str | None
    device_name: str | None
    timeout_s: float | None = None

    @property
    def fits(self) -> bool:
        """True if steps of this size can be taken and memory is not short."""
        return self.verdict == FITS

    @property
    def is_extrapolated(self) -> bool:
        """True if only shorter steps than those of the run were timed."""
        return self.fits and self.accumulate_grad_batches not in self.medians

    @property
    def step_s(self) -> float:
        """Seconds of a step of the run.

        If only shorter steps were timed: a step takes a fixed time and, for each micro batch, the
        time by which the longer of two steps exceeds the shorter one.
        """
        shorter, longest, missing = self._steps()
        return longest.s + missing * max(0.0, longest.s - shorter.s)

    @property
    def spread(self) -> float | None:
        """Half the width of the 95% interval of `step_s`, as a share of it.

        None if too few steps were timed for such an interval.
        """
        shorter, longest, missing = self._steps()
        if any(median.steps < FEWEST for median in self.medians.values()):
            return None
        half_s = (1 + missing) * longest.spread * longest.s
        return hypot(half_s, missing * shorter.spread * shorter.s) / self.step_s

    def _steps(self) -> tuple[Median, Median, float]:
        """Returns the shortest and the longest step that were timed, and the missing time.

        The missing time of a longer step of the run is in differences between the two.
        """
        counts = sorted(self.medians)
        if len(counts) == 1:
            return self.medians[counts[0]], self.medians[counts[0]], 0.0
        missing = (self.accumulate_grad_batches - counts[-1]) / (counts[-1] - counts[0])
        return self.medians[counts[0]], self.medians[counts[-1]], missing

    def rates(self) -> tuple[float, float]:
        """Returns the interval of `samples_per_s`, from 0 to infinity if it is not known."""
        if self.spread is None or self.spread >= 1.0:
            return 0.0, inf
        return self.samples_per_s / (1 + self.spread), self.samples_per_s / (1 - self.spread)

    @property
    def samples_per_s(self) -> float:
        """Throughput of a step of the run, over all ranks."""
        samples = self.micro_batch_size * self.data_parallel_size * self.accumulate_grad_batches
        return samples / self.step_s


@dataclass(kw_only=True, slots=True)
class Trials:
    """Runs trials.

    Attributes:
        run: run directory, which holds the run directories of the trials.
        diagnoses: trials diagnose the step of a size instead of only timing it.
    """

    resolved: Resolved
    run: RunDirectory
    start: StartRanks
    signals: StopSignals
    effort: Effort
    diagnoses: bool = False

    def folder_of(self, candidate: Candidate) -> Path:
        """Returns the run directory of a trial."""
        name = "diagnose" if self.diagnoses else f"micro_{candidate.micro_batch_size}"
        return self.run.path / TUNE_FOLDER / name

    def attempt(self, candidate: Candidate) -> Trial | None:
        """Tries a size. Returns None if a stop signal ended the trial.

        Raises:
            RampcliError: the ranks failed for another reason than memory or time.
        """
        # Ranks that are about to end may still hold the memory of a GPU.
        wait_for_orphans(self.run.whole_run, self.signals)
        trial = self._prepare(candidate)
        log, oom_kills = WorkerLog(trial.log), count_oom_kills()
        workers = self.start(trial, World.planned(candidate.stage), trial.log)
        try:
            workers.begin_training()
            deadline, has_started = time.monotonic() + START_S, False
            while workers.exit_code() is None and self.signals.signal is None:
                time.sleep(POLL_S)
                if not has_started and any(trial.logs.glob("stack_*.txt")):
                    deadline, has_started = time.monotonic() + self.effort.timeout_s, True
                if time.monotonic() > deadline and not has_started:
                    raise RampcliError(
                        f"no rank of the trial of {MICRO_KEY}={candidate.micro_batch_size} has"
                        f" started within {START_S:g} s; {log.describe()}",
                        remedy="fix the error in the log",
                    )
                if time.monotonic() > deadline:
                    stacks = _stacks(trial, workers, candidate.stage.world_size)
                    reason = f"no result after {self.effort.timeout_s:g} s{stacks}"
                    timed_out = _outcome(candidate, trial, TIMED_OUT, reason)
                    return replace(timed_out, timeout_s=self.effort.timeout_s)
            if self.signals.signal is not None:
                return None
            ended = WorkersExit(
                exit_code=workers.exit_code() or 0,
                killed=workers.killed(),
                oom_kills=count_oom_kills() - oom_kills,
                log=log,
            )
        finally:
            # A rank that waits in a collective for one that has failed would never end.
            workers.kill()
            workers.end()
        return _judge(candidate, trial, ended, self.resolved.config.launch)

    def _prepare(self, candidate: Candidate) -> TrialDirectory:
        """Removes files of an earlier trial of this size, and writes those that the ranks read."""
        trial = TrialDirectory(self.folder_of(candidate))
        RunDirectory(trial.path.parent).claim()
        self.run.remove_tree(trial.path)
        write_run_files(trial, run_plan(trial_config(self.resolved, candidate, trial.path)), [])
        trial.write_order(
            TrialOrder(
                timed=candidate.timed,
                effort=self.effort,
                diagnose_s=min(self.effort.timeout_s / 2, DIAGNOSE_S) if self.diagnoses else None,
            )
        )
        return trial


def _judge(
    candidate: Candidate, trial: TrialDirectory, ended: WorkersExit, launch: LaunchConfig
) -> Trial:
    """Returns the outcome of a trial whose ranks have ended."""
    state = trial.read_state() or BEFORE_THE_START
    error = state.get("error") or {}
    if ranks := ended.ranks_out_of_memory():
        killed = f"rank {ranks[0]} was killed because the host ran out of memory"
        return _outcome(candidate, trial, OUT_OF_MEMORY, killed)
    if error.get("out_of_memory"):
        return _outcome(candidate, trial, OUT_OF_MEMORY, error["message"])
    if ended.exit_code:
        failure = RampcliError(
            f"the trial of {MICRO_KEY}={candidate.micro_batch_size} failed:"
            f" {ended.cause(state, launch)}",
            remedy=error.get("remedy") or ended.remedy(launch),
            set_by=error.get("set_by", ()),
        )
        failure.exit_code = error.get("exit_code", 1)
        raise failure
    result = trial.read_result()
    reason = sign_of_thrashing(result.signs)
    return replace(
        _outcome(candidate, trial, FITS if reason is None else THRASHES, reason),
        medians={count: median_of(times) for count, times in result.step_s.items()},
        peak_memory_bytes=result.largest_peak_bytes,
    )


def _outcome(
    candidate: Candidate, trial: TrialDirectory, verdict: str, reason: str | None
) -> Trial:
    """Returns the outcome of a trial without measurements."""
    stage = candidate.stage
    start = next((row for row in read_rows(trial.events) if row["event"] == "start"), {})
    return Trial(
        micro_batch_size=candidate.micro_batch_size,
        verdict=verdict,
        reason=reason,
        world_size=stage.world_size,
        data_parallel_size=stage.data_parallel_size,
        accumulate_grad_batches=stage.accumulate_grad_batches,
        medians={},
        peak_memory_bytes=None,
        device=start.get("device"),
        device_name=start.get("device_name"),
    )


def sign_of_thrashing(signs: dict[str, int]) -> str | None:
    """Returns a sign that steps were slow for lack of memory, or None."""
    if retries := signs["allocator_retries"]:
        return f"the GPU's memory was full {retries} times"
    if signs["major_faults"] > MOST_FAULTS_PER_STEP * signs["watched_steps"]:
        return f"{signs['major_faults']:,} pages were read back from the disk"
    if signs["swapped_bytes"] > MOST_SWAPPED_BYTES:
        return f"{signs['swapped_bytes'] / 2**20:,.0f} MiB were swapped out"
    return None


def _stacks(trial: TrialDirectory, workers: Workers, world_size: int) -> str:
    """Makes the ranks write their stacks, and returns where each of them is."""
    for process in workers.processes:
        if process.poll() is None:
            process.send_signal(STACK_SIGNAL)
    deadline, places = time.monotonic() + STACKS_S, list[str]()
    while len(places) < world_size and time.monotonic() < deadline:
        time.sleep(POLL_S)
        found = ((rank, place_in(trial.stack(str(rank)))) for rank in range(world_size))
        places = [f"rank {rank} in {place}" for rank, place in found if place]
    shown = "; ".join(places[:MOST_RANKS_SHOWN])
    return f"; {shown} (stacks: {trial.logs}/stack_*.txt)" if places else ""


def place_in(stacks: Path) -> str | None:
    """Returns where the main thread was when a rank last wrote its stack, or None if unknown.

    The file may end anywhere, for example if the disk is full.
    """
    lines = WorkerLog(stacks, from_start=True).lines()
    frames = [frame for line, frame in pairwise(lines) if line.startswith(MAIN_THREAD)]
    return frames[-1].removeprefix("File ") if frames else None
