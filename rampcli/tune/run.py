"""Searches for the micro batches that fit and for the one to use, trial by trial."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from rampcli.batch.plan import MICRO_KEY
from rampcli.config.layers import sources_named
from rampcli.errors import UsageError, printable
from rampcli.estimate.memory import estimate_memory
from rampcli.launch.protocol import launcher_of, launchers
from rampcli.launch.run import write_run_files
from rampcli.launch.run_lock import WAIT_S, lock_run
from rampcli.launch.start_checks import check_corpora, check_launcher, check_place
from rampcli.machine.host import available_bytes
from rampcli.machine.lifeline import catch_stop_signals
from rampcli.planning.run_plan import Resolved
from rampcli.planning.stage_memory import device_memory_bytes, usable_bytes
from rampcli.runs.directory import TUNE_FOLDER, RunDirectory
from rampcli.runs.measured import TUNE_FILE
from rampcli.settings.config import Config
from rampcli.settings.launch import LaunchConfig
from rampcli.tune import results
from rampcli.tune.search import next_size, next_smaller
from rampcli.tune.sizes import Candidate, candidates
from rampcli.tune.trial import RANK, Trial, Trials
from rampcli.tune.trial_files import Effort


@contextmanager
def lock_search(run: RunDirectory, *, wait_s: float = WAIT_S) -> Iterator[None]:
    """Locks the run directory of a search. That of a phase is within the run's, locked as well."""
    with ExitStack() as locks:
        if run.whole_run != run:
            locks.enter_context(lock_run(run.whole_run, wait_s=wait_s))
            RunDirectory(run.path.parent).claim()
        locks.enter_context(lock_run(run, wait_s=wait_s))
        yield


@contextmanager
def trials_here(resolved: Resolved, effort: Effort, *, diagnoses: bool = False) -> Iterator[Trials]:
    """Checks what trials on this machine need, and holds the run and its GPUs meanwhile.

    Stop signals end the trial that runs, not this process.

    Args:
        diagnoses: measure where the time of a step goes.

    Raises:
        UsageError: the run trains elsewhere or is in use, or this machine lacks GPUs, or other runs
            use them.
        RampcliError: the corpora cannot be read.
    """
    launcher, run = launcher_of(resolved.config), RunDirectory(resolved.run_dir)
    with sources_named(resolved.config):
        check_corpora(resolved)
        if not launcher.runs_here:
            raise UsageError(
                "--diagnose measures on this machine, but the run trains elsewhere",
                keys=(LaunchConfig.launcher,),
                remedy=" or ".join(
                    f"launch={name}" for name, one in launchers().items() if one.runs_here
                ),
            )
        check_launcher(resolved)
        check_place(resolved)
        with (
            lock_search(run),
            launcher.reserve_gpus(resolved) as gpus,
            catch_stop_signals() as signals,
        ):
            yield Trials(
                resolved=resolved,
                run=run,
                start=launcher.rank_starter(resolved, RANK, gpus=gpus),
                signals=signals,
                effort=effort,
                diagnoses=diagnoses,
            )


def folder_of(resolved: Resolved) -> RunDirectory:
    """Returns the folder of a run's trials, with the configuration of the search."""
    return RunDirectory(RunDirectory(resolved.run_dir).path / TUNE_FOLDER)


def predict(config: Config, candidates: Sequence[Candidate]) -> int:
    """Returns the largest size that fits by its estimate.

    The smallest is returned if no size fits, or if the memory is unknown.
    """
    memory_bytes = device_memory_bytes(config)
    if memory_bytes is None:
        ranks = max(candidate.stage.world_size for candidate in candidates)
        memory_bytes = (available_bytes() or 0) // ranks
    usable = usable_bytes(config, memory_bytes)
    fitting = [
        candidate.micro_batch_size
        for candidate in candidates
        if estimate_memory(
            config,
            data_parallel_size=candidate.stage.data_parallel_size,
            micro_batch_size=candidate.micro_batch_size,
            accumulate_grad_batches=candidate.timed[-1],
        ).peak_bytes
        <= usable
    ]
    return max(fitting, default=candidates[0].micro_batch_size)


class Search:
    """A search, which can be interrupted after each trial and resumed later.

    It starts from the outcomes of an earlier one, except for those that its effort may change.

    Args:
        fresh: ignore the outcomes of an earlier search.
        exhaustive: try all sizes, from the smallest to the first that does not fit.
        conditions: what outcomes depend on, as the command that submitted a job has found it. None
            finds it here.

    Attributes:
        candidates: sizes that may be tried, in ascending order.
        known: outcomes so far, by size.

    Raises:
        DamagedFileError: tune.json is damaged.
    """

    def __init__(
        self,
        resolved: Resolved,
        effort: Effort,
        *,
        fresh: bool = False,
        exhaustive: bool = False,
        conditions: dict[str, Any] | None = None,
    ) -> None:
        self.resolved, self.effort, self.exhaustive = resolved, effort, exhaustive
        self.directory = RunDirectory(resolved.run_dir)
        self.candidates = candidates(resolved)
        self.predicted = predict(resolved.config, self.candidates)
        self.conditions = conditions or results.conditions(resolved)
        known = [] if fresh else results.read_trials(self.directory, self.conditions, effort)
        admitted = {candidate.micro_batch_size for candidate in self.candidates}
        self.known = {
            trial.micro_batch_size: trial for trial in known if trial.micro_batch_size in admitted
        }

    def begin(self, report: Callable[[str], None]) -> None:
        """Writes the configuration of the search, and sets the results of another one aside."""
        changed = results.changed_conditions(self.directory, self.conditions)
        if changed or not self.known:
            self._set_aside(report, other=", ".join(changed))
        folder = folder_of(self.resolved)
        self.directory.make_folder(folder.path)
        write_run_files(folder, self.resolved, [])

    def _set_aside(self, report: Callable[[str], None], *, other: str) -> None:
        """Renames tune.json, if there is one, and reports its new name and which conditions differ.

        Known outcomes may come from a file that was set aside before.
        """
        if not (self.directory.path / TUNE_FILE).exists():
            return
        aside = self.directory.set_aside(self.directory.path / TUNE_FILE)
        why = f": they were measured under other conditions ({other})" if other else ""
        report(printable(f"earlier results are kept in {aside}{why}"))

    def next(self) -> Candidate | None:
        """Returns the size to try next, or None once the answer is known."""
        sizes = [candidate.micro_batch_size for candidate in self.candidates]
        fits = {size: trial.fits for size, trial in self.known.items()}
        size = next_size(sizes, fits, predicted=self.predicted, exhaustive=self.exhaustive)
        if size is None and not self.exhaustive:
            rates = {
                size: trial.samples_per_s if trial.fits else None
                for size, trial in self.known.items()
            }
            size = next_smaller(sizes, rates)
        return None if size is None else self.candidates[sizes.index(size)]

    def continue_with(
        self,
        attempt: Callable[[Candidate], Trial | None],
        report: Callable[[str], None] = lambda _: None,
    ) -> bool:
        """Makes attempts until the answer is known, and writes tune.json after each.

        Args:
            attempt: tries a size; returns None if a stop signal ended the trial.

        Returns:
            False if a stop signal came first.

        Raises:
            RampcliError: a trial failed for another reason than memory or time.
        """
        if self.next() is not None:
            self.begin(report)
        while (candidate := self.next()) is not None:
            size = candidate.micro_batch_size
            report(f"trying {MICRO_KEY}={size}")
            trial = attempt(candidate)
            if trial is None:
                return False
            if trial.reason is not None:
                report(f"  {trial.verdict}: {trial.reason}")
            devices = {one.device_name for one in (*self.known.values(), trial)} - {None}
            if len(devices) > 1:
                self._set_aside(report, other="device")
                self.known.clear()
            self.known[size] = trial
            self.directory.write_json(self.directory.path / TUNE_FILE, self.to_json())
        return True

    def outcomes(self) -> list[Trial]:
        """Returns the outcomes so far, in ascending order of size."""
        return [self.known[size] for size in sorted(self.known)]

    def to_json(self) -> dict[str, Any]:
        """Returns the content of tune.json."""
        return results.tune_json(
            self.conditions, self.outcomes(), self.resolved.plan.sequence_length
        )
