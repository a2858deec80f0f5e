"""The run directory of a trial, and the files in it that the search and the ranks exchange."""

import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rampcli.records import COUNT, POSITIVE, RATE, read_json
from rampcli.runs.directory import RunDirectory

STACK_SIGNAL = signal.SIGUSR2
"""Signal that makes a rank write its stack."""
EFFORT = {
    "warm_up_steps": COUNT,
    "most_steps": POSITIVE,
    "spread": RATE,
    "timeout_s": RATE,
}
ORDER = {"timed": [POSITIVE], "effort": EFFORT, "diagnose_s": (RATE, None)}
TIMES = {"accumulate_grad_batches": POSITIVE, "step_s": [RATE]}
RESULT = {
    "times": [TIMES],
    "peak_memory_bytes": [(COUNT, None)],
    "watched_steps": COUNT,
    "allocator_retries": COUNT,
    "major_faults": COUNT,
    "swapped_bytes": COUNT,
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """What the ranks of a trial time.

    Attributes:
        timed: micro batches per step, one entry for each kind of step.
        diagnose_s: time in which the largest kind of step is diagnosed; None only times steps.
    """

    timed: tuple[int, ...]
    effort: Effort
    diagnose_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What the ranks of a trial have measured.

    Attributes:
        step_s: times of the steps, by micro batches per step.
        peak_memory_bytes: most memory held, by rank; None if it is unknown.
        watched_steps: steps in which signs of too little memory were counted, on all ranks.
        allocator_retries, major_faults, swapped_bytes: these signs, as in `rampcli.train.memory`.
    """

    step_s: dict[int, list[float]]
    peak_memory_bytes: list[int | None]
    watched_steps: int
    allocator_retries: int
    major_faults: int
    swapped_bytes: int

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
        """That of the run: a run waits for ranks of trials too, whose folder may be removed."""
        return RunDirectory(self.path.parents[1]).workers_lock

    def stack(self, rank: str) -> Path:
        """Returns the file to which a rank writes what it is doing."""
        return self.logs / f"stack_{rank}.txt"

    def write_order(self, order: Order) -> None:
        """Writes trial.json."""
        self.write_json(self.path / "trial.json", asdict(order))

    def read_order(self) -> Order:
        """Returns the contents of trial.json.

        Raises:
            DamagedFileError: it is not what `write_order` writes.
        """
        facts = read_json(self.path / "trial.json", ORDER)
        return Order(
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
        facts: dict[str, Any] = read_json(self.path / "result.json", RESULT)
        step_s = {row["accumulate_grad_batches"]: row["step_s"] for row in facts.pop("times")}
        return Result(step_s=step_s, **facts)
