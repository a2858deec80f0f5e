"""Branches of a run with larger batches, which `rampcli cbs` trains below RUN/cbs.

Branches of one checkpoint are in RUN/cbs/SAMPLES, with result.json.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rampcli.records import COUNT, POSITIVE, RATE, read_json
from rampcli.runs.directory import RunDirectory
from rampcli.runs.event_kinds import NUMBER_OR_NULL
from rampcli.runs.sweep_folder import SweepFolder

FOLDER, RESULT = "cbs", "result.json"
BRANCH = {
    "multiple": POSITIVE,
    "global_batch_size": POSITIVE,
    "lr": RATE,
    "run_dir": str,
    "state": str,
    "steps": POSITIVE,
    "samples": POSITIVE,
    "worse_than": (POSITIVE, None),
    **dict.fromkeys(("loss", "difference", "standard_error", "hours", "gpu_hours"), NUMBER_OR_NULL),
}
SHAPE = {
    "step": COUNT,
    "consumed_samples": COUNT,
    "sequence_length": POSITIVE,
    "global_batch_size": POSITIVE,
    "lr": RATE,
    "exponent": float,
    "decays": bool,
    "samples": POSITIVE,
    "critical_batch_size": (POSITIVE, None),
    "is_lower_bound": bool,
    "notes": [str],
    "branches": [BRANCH],
}
"""Shape of result.json, in the notation of `rampcli.records`."""


@dataclass(frozen=True, slots=True)
class BranchFolder(SweepFolder):
    """A folder whose folders are the branches of a checkpoint."""

    @classmethod
    def of(cls, run: RunDirectory, consumed_samples: int) -> "BranchFolder":
        """Returns the folder of the branches of a run's checkpoint."""
        return cls(run.path / FOLDER / str(consumed_samples))

    @property
    def result(self) -> Path:
        """The file of the options and the results."""
        return self.path / RESULT

    def read_result(self) -> dict[str, Any] | None:
        """Returns the content of result.json, or None if the file does not exist.

        Raises:
            DamagedFileError: the file is damaged.
        """
        with suppress(FileNotFoundError):
            result: dict[str, Any] = read_json(self.result, SHAPE)
            return result
        return None


def read_branches(run: RunDirectory) -> list[dict[str, Any]]:
    """Returns the results of all branches of a run, one per checkpoint, in order of its samples.

    Raises:
        DamagedFileError: a file is damaged.
    """
    samples = sorted(
        int(path.name) for path in (run.path / FOLDER).glob("[0-9]*") if path.name.isdecimal()
    )
    found = [BranchFolder.of(run, each).read_result() for each in samples]
    return [result for result in found if result is not None]
