"""Branches of a run with larger batches, which `rampcli cbs` trains below RUN/cbs.

Branches of one checkpoint are in RUN/cbs/SAMPLES, with result.json.
"""

import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rampcli.batch.quantities import MOST_NAMED, listed
from rampcli.files.records import COUNT, POSITIVE, RATE, read_json
from rampcli.runs.directory import RunDirectory
from rampcli.runs.event_kinds import NUMBER_OR_NULL
from rampcli.runs.sweep_folder import SweepFolder

CBS_FOLDER, RESULT_FILE = "cbs", "result.json"
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
CBS_RESULT_SHAPE = {
    "step": COUNT,
    "consumed_samples": COUNT,
    "phase?": (str, None),
    "sequence_length": POSITIVE,
    "global_batch_size": POSITIVE,
    "lr": RATE,
    "exponent": float,
    "decays": bool,
    "samples": POSITIVE,
    "samples_left": (POSITIVE, None),
    "critical_batch_size": (POSITIVE, None),
    "is_lower_bound": bool,
    "notes": [str],
    "branches": [BRANCH],
}
"""Shape of result.json, in the notation of `rampcli.files.records`."""


@dataclass(frozen=True, slots=True)
class BranchFolder(SweepFolder):
    """A folder whose folders are the branches of a checkpoint."""

    @classmethod
    def of(cls, run: RunDirectory, consumed_samples: int) -> "BranchFolder":
        """Returns the folder of the branches of a run's checkpoint."""
        return cls(run.path / CBS_FOLDER / str(consumed_samples))

    @property
    def result(self) -> Path:
        """The file of the options and the results."""
        return self.path / RESULT_FILE

    @property
    def comparison(self) -> str:
        """The command that compares the branches and trains nothing."""
        run, samples = str(self.path.parent.parent), self.path.name
        return shlex.join(["rampcli", "cbs", run, "--at", samples, "--dry-run"])

    def read_result(self) -> dict[str, Any] | None:
        """Returns the content of result.json, or None if the file does not exist.

        Raises:
            DamagedFileError: the file is damaged.
        """
        with suppress(FileNotFoundError):
            result: dict[str, Any] = read_json(self.result, CBS_RESULT_SHAPE)
            return result
        return None


def branched_samples(run: RunDirectory) -> list[int]:
    """Returns the consumed samples of the checkpoints that branches have started from, in order."""
    results = (run.path / CBS_FOLDER).glob(f"[0-9]*/{RESULT_FILE}")
    return sorted(int(path.parent.name) for path in results if path.parent.name.isdecimal())


def describe_branches(run: RunDirectory) -> list[str]:
    """Returns a line that names the newest branches of a run, and how to show the last one."""
    samples = branched_samples(run)
    if not samples:
        return []
    shown = shlex.join(["rampcli", "report", str(BranchFolder.of(run, samples[-1]).path)])
    places = listed([f"{each:,}" for each in samples[-MOST_NAMED:]])
    return [f"branches with larger batches, from after {places} samples:\n  {shown}"]


def find_branches(folder: Path) -> BranchFolder | None:
    """Returns the branches in a folder, or None if it is another folder."""
    found = BranchFolder(folder)
    return found if folder.parent.name == CBS_FOLDER and found.result.is_file() else None


def read_branches(run: RunDirectory) -> list[dict[str, Any]]:
    """Returns the results of all branches of a run, one per checkpoint, in order of its samples.

    Raises:
        DamagedFileError: a file is damaged.
    """
    found = [BranchFolder.of(run, each).read_result() for each in branched_samples(run)]
    return [result for result in found if result is not None]
