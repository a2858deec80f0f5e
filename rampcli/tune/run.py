"""Searches for the micro batches that fit and for the one to use, trial by trial."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from rampcli.config.run_plan import Resolved
from rampcli.launch.launchers import launcher_of
from rampcli.launch.local import LocalWorkers
from rampcli.tune import results
from rampcli.tune.search import next_size, next_smaller
from rampcli.tune.sizes import Candidate, candidates
from rampcli.tune.trial import RANK, Start, Trial, Trials
from rampcli.tune.verdict import verdict_of


@contextmanager
def local_ranks(resolved: Resolved) -> Iterator[Start]:
    """Reserves the GPUs that a search needs on this machine, and gives what starts ranks on them.

    Raises:
        UsageError: this machine lacks the GPUs, or other runs use them.
    """
    launcher = launcher_of(resolved.config)
    launcher.check(resolved)
    with launcher.reserve_gpus(resolved) as gpus:
        devices = resolved.config.trainer.devices
        yield partial(LocalWorkers, devices=devices, gpus=gpus, module=RANK)


@dataclass(kw_only=True, slots=True)
class Search:
    """A search, which can be interrupted after each trial and resumed later.

    Attributes:
        trials: runs a trial.
        candidates: sizes that may be tried, in ascending order.
        predicted: size to start with.
        exhaustive: try all sizes, from the smallest to the first that does not fit.
        on_trial: called before a trial with its size, and after it with its outcome.
        known: outcomes so far, by size.
    """

    trials: Trials
    candidates: Sequence[Candidate]
    predicted: int
    exhaustive: bool
    on_trial: Callable[[int, Trial | None], None]
    known: dict[int, Trial]

    @classmethod
    def of(
        cls,
        trials: Trials,
        *,
        fresh: bool,
        exhaustive: bool,
        on_trial: Callable[[int, Trial | None], None],
    ) -> "Search":
        """Returns a search with the outcomes of an earlier one, unless `fresh` is set.

        Raises:
            DamagedFileError: tune.json is damaged.
        """
        resolved, sizes = trials.resolved, candidates(trials.resolved)
        wanted = max(resolved.plan.stages, key=lambda stage: stage.global_batch_size)
        predicted = min(
            (size.micro_batch_size for size in sizes),
            key=lambda size: abs(size - wanted.micro_batch_size),
        )
        known = [] if fresh else results.read_trials(trials.run, results.conditions(resolved))
        return cls(
            trials=trials,
            candidates=sizes,
            predicted=predicted,
            exhaustive=exhaustive,
            on_trial=on_trial,
            known={trial.micro_batch_size: trial for trial in known},
        )

    @property
    def all_fit(self) -> bool:
        """True if the largest size that the batch admits fits."""
        largest = self.known.get(self.candidates[-1].micro_batch_size)
        return largest is not None and largest.fits

    def run(self) -> bool:
        """Runs trials until the answer is known. Returns False if a stop signal came first.

        Raises:
            RampcliError: a trial failed for another reason than memory or time.
        """
        while (size := self._next()) is not None:
            self.on_trial(size, None)
            candidate = next(one for one in self.candidates if one.micro_batch_size == size)
            trial = self.trials.attempt(candidate)
            if trial is None:
                return False
            self.known[size] = trial
            self.save()
            self.on_trial(size, trial)
        return True

    def _next(self) -> int | None:
        sizes = [candidate.micro_batch_size for candidate in self.candidates]
        fits = {size: trial.fits for size, trial in self.known.items()}
        size = next_size(sizes, fits, predicted=self.predicted, exhaustive=self.exhaustive)
        if size is not None or self.exhaustive:
            return size
        return next_smaller(
            sizes,
            {size: trial.samples_per_s for size, trial in self.known.items() if trial.fits},
        )

    def outcomes(self) -> list[Trial]:
        """Returns the outcomes so far, in ascending order of size."""
        return [self.known[size] for size in sorted(self.known)]

    def save(self) -> None:
        """Writes tune.json."""
        run = self.trials.run
        run.write_json(run.path / results.FILE, self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Returns the content of tune.json."""
        resolved, outcomes = self.trials.resolved, self.outcomes()
        return results.to_json(
            results.conditions(resolved),
            outcomes,
            verdict_of(outcomes),
            resolved.plan.sequence_length,
        )
