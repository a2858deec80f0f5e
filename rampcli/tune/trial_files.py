"""The run directory of a trial, and the files in it that the search and the ranks exchange."""

import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rampcli.files.records import COUNT, POSITIVE, RATE, read_json
from rampcli.runs.directory import RunDirectory
from rampcli.tune.median import FEWEST, Median

STACK_SIGNAL = signal.SIGUSR2
"""Signal that makes a rank write its stack."""
EFFORT = {
    "warm_up_steps": COUNT,
    "most_steps": POSITIVE,
    "spread": RATE,
    "timeout_s": RATE,
}
TRIAL_ORDER_SHAPE = {"timed": [POSITIVE], "effort": EFFORT, "diagnose_s": (RATE, None)}
TRIAL_TIMES_SHAPE = {"accumulate_grad_batches": POSITIVE, "step_s": [RATE]}
SIGNS = ("watched_steps", "allocator_retries", "major_faults", "swapped_bytes")
"""Signs that memory is short: how often a GPU's memory was full and the allocator freed its cache,
pages that had to be read from the disk, and memory that was moved there; and in how many steps they
were counted."""
RESULT_SHAPE = {
    "times": [TRIAL_TIMES_SHAPE],
    "peak_memory_bytes": [(COUNT, None)],
    "signs": dict.fromkeys(SIGNS, COUNT),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """How much is measured, and for how long.

    Attributes:
        warm_up_steps: steps of each kind before any is timed.
        most_steps: most steps of each kind that are timed.
        spread: steps are timed until the median's 95% interval is within this share of it.
        timeout_s: time that a trial may take.
    """

    warm_up_steps: int = 2
    most_steps: int = 100
    spread: float = 0.03
    timeout_s: float = 600.0

    def is_enough(self, median: Median) -> bool:
        """Returns whether no further step has to be timed."""
        if median.steps >= self.most_steps:
            return True
        return median.steps >= FEWEST and median.spread <= self.spread


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialOrder:
    """Steps that the ranks of a trial time.

    Attributes:
        timed: micro batches per step, one entry for each kind of step.
        diagnose_s: time in which the largest kind of step is diagnosed; None only times steps.
    """

    timed: tuple[int, ...]
    effort: Effort
    diagnose_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """Measurements of the ranks of a trial.

    Attributes:
        step_s: times of the steps, by micro batches per step.
        peak_memory_bytes: most memory held, by rank; None if it is unknown.
        signs: each of `SIGNS`, summed over all ranks.
    """

    step_s: dict[int, list[float]]
    peak_memory_bytes: list[int | None]
    signs: dict[str, int]

    @property
    def largest_peak_bytes(self) -> int | None:
        """Most memory that a rank has held, or None if it is unknown."""
        return max((peak for peak in self.peak_memory_bytes if peak is not None), default=None)


@dataclass(frozen=True, slots=True)
class TrialDirectory(RunDirectory):
    """The run directory of a trial, with the order for its ranks and their result."""

    @property
    def log(self) -> Path:
        """Output of the ranks."""
        return self.logs / "trial.log"

    @property
    def workers_lock(self) -> Path:
        """The run's lock: a run also waits for ranks of trials, whose folder may be removed."""
        return RunDirectory(self.path.parents[1]).whole_run.workers_lock

    def stack(self, rank: str) -> Path:
        """Returns the file to which a rank writes what it is doing."""
        return self.logs / f"stack_{rank}.txt"

    def write_order(self, order: TrialOrder) -> None:
        """Writes trial.json."""
        self.write_json(self.path / "trial.json", asdict(order))

    def read_order(self) -> TrialOrder:
        """Returns the contents of trial.json.

        Raises:
            DamagedFileError: it is not what `write_order` writes.
        """
        facts = read_json(self.path / "trial.json", TRIAL_ORDER_SHAPE)
        return TrialOrder(
            timed=tuple(facts["timed"]),
            effort=Effort(**facts["effort"]),
            diagnose_s=facts["diagnose_s"],
        )

    def write_result(self, result: Result) -> None:
        """Writes result.json."""
        times = [
            {"accumulate_grad_batches": count, "step_s": times}
            for count, times in result.step_s.items()
        ]
        facts = {name: value for name, value in asdict(result).items() if name != "step_s"}
        self.write_json(self.path / "result.json", {"times": times, **facts})

    def read_result(self) -> Result:
        """Returns the contents of result.json.

        Raises:
            FileNotFoundError: the ranks have not finished.
            DamagedFileError: it is not what `write_result` writes.
        """
        facts: dict[str, Any] = read_json(self.path / "result.json", RESULT_SHAPE)
        step_s = {row["accumulate_grad_batches"]: row["step_s"] for row in facts.pop("times")}
        return Result(step_s=step_s, **facts)
