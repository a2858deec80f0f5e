"""What trials say about micro batch sizes: which fits, and which should be used.

After "Determining the feasible batch sizes and estimating training throughput" in Google's Deep
Learning Tuning Playbook.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rampcli.tune.search import SATURATED
from rampcli.tune.trial import Trial


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What was found.

    Attributes:
        largest: the largest micro batch that fits.
        fastest: the one with the best throughput.
        recommended: the smallest one with at least `SATURATED` of the best throughput.
    """

    largest: Trial
    fastest: Trial
    recommended: Trial

    @property
    def share(self) -> float:
        """Throughput of the recommended size, as a share of the best."""
        return self.recommended.samples_per_s / self.fastest.samples_per_s


def verdict_of(trials: Sequence[Trial]) -> Verdict | None:
    """Returns what trials say, or None if no size fits."""
    fitting = sorted(
        (trial for trial in trials if trial.fits), key=lambda trial: trial.micro_batch_size
    )
    if not fitting:
        return None
    fastest = max(fitting, key=lambda trial: trial.samples_per_s)
    enough = SATURATED * fastest.samples_per_s
    recommended = next(trial for trial in fitting if trial.samples_per_s >= enough)
    return Verdict(largest=fitting[-1], fastest=fastest, recommended=recommended)


def scaling(trial: Trial, trials: Sequence[Trial]) -> float | None:
    """Returns by how much a size is faster than half of it, or None if that was not measured."""
    half = next(
        (
            other
            for other in trials
            if other.fits and 2 * other.micro_batch_size == trial.micro_batch_size
        ),
        None,
    )
    return trial.samples_per_s / half.samples_per_s if half and trial.fits else None
