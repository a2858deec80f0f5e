"""A diagnosis: the time of a step under several conditions, its parts, and its bottlenecks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from rampcli.batch.plan import ACCUMULATE_KEY, GLOBAL_KEY, MICRO_KEY, SHARD_KEY
from rampcli.files.records import POSITIVE, RATE, read_json
from rampcli.settings.config import Config
from rampcli.tune.median import Median, median_of

DIAGNOSIS_FILE = "diagnosis.json"
SO_FAR = "diagnosis_so_far.json"
"""The same after each round, for a diagnosis that is interrupted."""
AS_IS, IN_MEMORY, NO_GRADIENTS, NO_WEIGHTS, NO_EXCHANGE, ALONE, NO_TOKENS = (
    "as it is",
    "data in memory",
    "no exchange of gradients",
    "no gathering of weights",
    "no exchange",
    "one rank alone",
    "few tokens",
)
"""Conditions of a step. Each of the first six leaves out one thing more than the one before."""


class PartName(StrEnum):
    """A part of a step."""

    DATA = "waiting for data"
    GRADIENTS = "exchange of gradients"
    WEIGHTS = "gathering of weights"
    WAITING = "waiting for the slowest rank"
    NEIGHBOURS = "other ranks on the same processors"
    FIXED = "work that does not depend on the tokens"
    TOKENS = "computing"
    THREADS = "too many threads"


LEFT_OUT = {
    IN_MEMORY: PartName.DATA,
    NO_GRADIENTS: PartName.GRADIENTS,
    NO_WEIGHTS: PartName.WEIGHTS,
    NO_EXCHANGE: PartName.WAITING,
    ALONE: PartName.NEIGHBOURS,
}
"""Part of the step that each condition leaves out in addition to the condition before it."""
REMEDIES = {
    PartName.DATA: (
        "`rampcli data build` writes files that load fastest; or data.path on a"
        " faster disk, or more memory for the page cache"
    ),
    PartName.GRADIENTS: f"raise {ACCUMULATE_KEY} with a larger {GLOBAL_KEY}, or raise {MICRO_KEY}",
    PartName.WEIGHTS: (
        f"a smaller {SHARD_KEY}, such as the devices of a node, or 1 for no sharding; or raise"
        f" {MICRO_KEY}"
    ),
    PartName.WAITING: (
        "stop other programs on these hosts, or use fewer processes per host (trainer.devices)"
    ),
    PartName.NEIGHBOURS: (
        "fewer processes per host (trainer.devices), or fewer threads each (OMP_NUM_THREADS)"
    ),
    PartName.FIXED: f"a larger {MICRO_KEY}, which `rampcli tune` finds, or trainer.compile=true",
}
"""What reduces the share of a part."""
BOTTLENECK_SHARE = 0.1
"""A part of a step is a bottleneck if it certainly takes more than this share."""
TIMES_SHAPE = {"condition": str, "threads": (POSITIVE, None), "s": [RATE]}
DIAGNOSIS_SHAPE = {
    "times": [TIMES_SHAPE],
    "not_measured": {...: str},
    "threads": POSITIVE,
    "tokens_per_micro_batch": POSITIVE,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPart:
    """A part of a step.

    Attributes:
        what: its name, such as `PartName.DATA`.
        s: seconds of a step, not below 0.
        share, low, high: share of the whole step, and the interval that it lies in with a
            confidence of `rampcli.tune.median.CONFIDENCE`. None is below 0.
        threads: for `PartName.THREADS`, the number of threads with which the step is fastest.
    """

    what: PartName
    s: float
    share: float
    low: float
    high: float
    threads: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """Measurements of all ranks, on rank 0.

    Attributes:
        seconds: time of a step by condition, one per round.
        by_threads: time of a step with data in memory, by number of threads.
        not_measured: why a part of the step was not measured, by part.
        tokens_per_micro_batch: tokens of a micro batch under `NO_TOKENS`.
    """

    seconds: Mapping[str, Sequence[float]]
    by_threads: Mapping[int, Sequence[float]]
    not_measured: Mapping[str, str]
    threads: int
    tokens_per_micro_batch: int

    @property
    def step(self) -> Median:
        """The whole step."""
        return median_of(self.seconds[AS_IS])

    @property
    def rounds(self) -> int:
        """Rounds that were measured."""
        return len(self.seconds[AS_IS])

    @property
    def parts(self) -> list[StepPart]:
        """The parts of the step, whose times add up to the step's.

        A part is the difference of the medians of two conditions. A condition that leaves out more
        than the one before it and takes no less time has saved nothing.
        """
        parts, before = [], AS_IS
        before_s = self.step.s
        for condition, part in LEFT_OUT.items():
            if condition in self.seconds:
                median_s = min(before_s, self._median_s(condition))
                parts.append(self._part(part, before_s - median_s, before, condition))
                before, before_s = condition, median_s
        if NO_TOKENS not in self.seconds:
            return [*parts, self._part(PartName.TOKENS, before_s, before)]
        few_s = min(before_s, self._median_s(NO_TOKENS))
        return [
            *parts,
            self._part(PartName.FIXED, few_s, NO_TOKENS),
            self._part(PartName.TOKENS, before_s - few_s, before, NO_TOKENS),
        ]

    @property
    def exchange_share(self) -> float | None:
        """Share of a step that ranks spend on exchange; None if no part of it was measured."""
        exchange = (PartName.GRADIENTS, PartName.WEIGHTS, PartName.WAITING)
        shares = [part.share for part in self.parts if part.what in exchange]
        return sum(shares) if shares else None

    @property
    def excess_threads(self) -> StepPart | None:
        """Time saved by the best smaller number of threads; None if no other number was tried."""
        in_memory_s = median_of(self.seconds[IN_MEMORY]).s
        savings = [
            self._between(
                PartName.THREADS, in_memory_s - median_of(times).s, gains, threads=threads
            )
            for threads, times in self.by_threads.items()
            for gains in [_differences(self.seconds[IN_MEMORY], times)]
        ]
        return max(savings, key=lambda part: (part.s, part.high), default=None)

    def is_precise(self, *, spread: float) -> bool:
        """Returns whether the step and the shares of its parts are known within `spread`."""
        if self.step.spread > spread:
            return False
        return all(part.high - part.low <= 2 * spread for part in self._parts_and_threads())

    def bottlenecks(self, config: Config) -> dict[PartName, str]:
        """Returns the parts that certainly take over `BOTTLENECK_SHARE` of a step, largest first.

        Each has a message: its share, and what reduces it. `PartName.FIXED` comes last, because a
        part of it is always necessary. If there is no such part, the result is `PartName.TOKENS`.
        """
        large = [
            part
            for part in self._parts_and_threads()
            if part.low > BOTTLENECK_SHARE and part.what != PartName.TOKENS
        ]
        large.sort(key=lambda part: (part.what == PartName.FIXED, -part.share))
        found = {part.what: _message(part, config) for part in large}
        return found or {PartName.TOKENS: self._no_bottleneck()}

    def _no_bottleneck(self) -> str:
        if not self.is_precise(spread=BOTTLENECK_SHARE):
            return (
                "no bottleneck was found, but times vary too much to exclude one: measure on an"
                " idle machine"
            )
        computing = sum(
            part.share for part in self.parts if part.what in (PartName.FIXED, PartName.TOKENS)
        )
        return (
            f"computing takes {computing:.0%} of the step: no bottleneck outside the model"
            f"{' in what was measured' if self.not_measured else ''}"
        )

    def _parts_and_threads(self) -> list[StepPart]:
        return [*self.parts, *filter(None, [self.excess_threads])]

    def _median_s(self, condition: str) -> float:
        return median_of(self.seconds[condition]).s

    def _part(
        self, what: PartName, s: float, condition: str, without: str | None = None
    ) -> StepPart:
        """Returns a part of `s` seconds: the time that `without` saves of another condition."""
        times = self.seconds[condition]
        gains = times if without is None else _differences(times, self.seconds[without])
        return self._between(what, s, gains)

    def _between(
        self, what: PartName, s: float, gains: Sequence[float], *, threads: int | None = None
    ) -> StepPart:
        """Returns a part with the interval of the median of its gains, one per round.

        The differences are taken round by round, so that drift does not widen the interval. It is
        widened to hold `s`, which is the difference of two medians.
        """
        gain, step_s = median_of(gains), self.step.s
        s = max(0.0, s)
        return StepPart(
            what=what,
            s=s,
            share=s / step_s,
            low=max(0.0, min(gain.low_s, s)) / step_s,
            high=max(0.0, gain.high_s, s) / step_s,
            threads=threads,
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the content of diagnosis.json."""
        rows = [
            *((condition, None, times) for condition, times in self.seconds.items()),
            *((IN_MEMORY, threads, times) for threads, times in self.by_threads.items()),
        ]
        return {
            "times": [
                {"condition": condition, "threads": threads, "s": list(times)}
                for condition, threads, times in rows
            ],
            "not_measured": dict(self.not_measured),
            "threads": self.threads,
            "tokens_per_micro_batch": self.tokens_per_micro_batch,
            "exchange_share": self.exchange_share,
        }


def _differences(times: Sequence[float], others: Sequence[float]) -> list[float]:
    return [time - other for time, other in zip(times, others, strict=True)]


def _message(part: StepPart, config: Config) -> str:
    if part.what == PartName.THREADS:
        threads = "1 thread" if part.threads == 1 else f"{part.threads} threads"
        return (
            f"{threads} would save {part.share:.0%} of the step: set OMP_NUM_THREADS={part.threads}"
        )
    remedy = REMEDIES[part.what]
    reduces_each = config.trainer.accumulate_reduce == "each"
    if (
        part.what == PartName.GRADIENTS
        and reduces_each
        and config.parallel.data_parallel_shard_size != 1
    ):
        remedy = f"trainer.accumulate_reduce=last, or {remedy}"
    return f"{part.what} takes {part.share:.0%} of the step: {remedy}"


def read_diagnosis(folder: Path, file: str = DIAGNOSIS_FILE) -> Diagnosis:
    """Returns the diagnosis that rank 0 has written into the run directory of a trial.

    Raises:
        FileNotFoundError: there is none.
        DamagedFileError: diagnosis.json is not what `Diagnosis.to_json` returns.
    """
    facts = read_json(folder / file, DIAGNOSIS_SHAPE)
    times = facts.pop("times")
    facts.pop("exchange_share", None)  # it follows from the times
    return Diagnosis(
        seconds={row["condition"]: row["s"] for row in times if row["threads"] is None},
        by_threads={row["threads"]: row["s"] for row in times if row["threads"] is not None},
        **facts,
    )
