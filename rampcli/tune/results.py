"""tune.json: what a search has measured so far, and under which conditions."""

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rampcli import __version__
from rampcli.batch.plan import GLOBAL_KEY
from rampcli.errors import DamagedFileError
from rampcli.files.records import COUNT, POSITIVE, RATE, read_json
from rampcli.launch.local.launcher import gpus_needed
from rampcli.launch.protocol import launcher_of
from rampcli.machine.gpus import gpu_names
from rampcli.machine.host import processors
from rampcli.planning.run_plan import Resolved
from rampcli.runs.directory import RunDirectory
from rampcli.runs.measured import TUNE_FILE
from rampcli.settings.by_key import changes, leaves, settings
from rampcli.settings.data import DataConfig
from rampcli.settings.facts import COST, LEARNING, MACHINES, SAMPLES, SPLIT
from rampcli.settings.trainer import TrainerConfig
from rampcli.tune.median import Median
from rampcli.tune.search import verdict_of
from rampcli.tune.trial import FITS, OUT_OF_MEMORY, THRASHES, TIMED_OUT, Trial
from rampcli.tune.trial_files import Effort

MEDIAN = {
    "accumulate_grad_batches": POSITIVE,
    "s": RATE,
    "low_s": RATE,
    "high_s": RATE,
    "steps": POSITIVE,
}
TRIAL = {
    "micro_batch_size": POSITIVE,
    "verdict": str,
    "reason": (str, None),
    "world_size": POSITIVE,
    "data_parallel_size": POSITIVE,
    "accumulate_grad_batches": POSITIVE,
    "medians": [MEDIAN],
    "peak_memory_bytes": (COUNT, None),
    "device": (str, None),
    "device_name": (str, None),
    "timeout_s?": (RATE, None),
}
TUNE_SHAPE = {"conditions": {}, "trials": [TRIAL]}
"""Shape of tune.json, in the notation of `rampcli.files.records`. Only what a search reads back."""
FIELDS = tuple(name.removesuffix("?") for name in TRIAL)


def conditions(resolved: Resolved) -> dict[str, Any]:
    """Returns everything that results depend on, apart from the micro batch size.

    The corpora are part of it: attention within documents takes longer if documents are long.
    """
    settings = {
        key: value
        for key, value in leaves(resolved.config)
        if (changes(key, COST | MACHINES) and not changes(key, SPLIT)) or _is_of_corpora(key)
    }
    return settings | {
        GLOBAL_KEY: max(stage.global_batch_size for stage in resolved.plan.stages),
        **(_of_this_machine(resolved) if launcher_of(resolved.config).runs_here else {}),
        "rampcli": __version__,
        "torch": _version_of("torch"),
    }


def _is_of_corpora(key: str) -> bool:
    """Returns whether a setting decides which documents the run reads, and as which tokens."""
    is_read = key.startswith("data.") and changes(key, SAMPLES | LEARNING)
    return is_read and key not in (DataConfig.split, DataConfig.pad_last_window)


def _of_this_machine(resolved: Resolved) -> dict[str, Any]:
    """Returns what ranks that run here depend on, besides the settings."""
    on_gpus = gpus_needed(resolved.config, resolved.plan) > 0
    return {
        TrainerConfig.accelerator: "gpu" if on_gpus else "cpu",
        "host": socket.gethostname(),
        "gpus": gpu_names() if on_gpus else [],
        "processors": processors(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
    }


def _version_of(package: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(package)
    return None


def read_trials(run: RunDirectory, wanted: dict[str, Any], effort: Effort) -> list[Trial]:
    """Returns the trials of earlier searches under the same conditions.

    Also reads results that were set aside. Leaves out trials whose outcome could change, because
    `effort` allows more steps or more time than they had.

    Raises:
        DamagedFileError: tune.json is damaged.
    """
    newest = run.path / TUNE_FILE
    for path in (newest, *run.files_aside(newest)):
        try:
            facts = read_json(path, TUNE_SHAPE)
            trials = [_trial(row, path) for row in facts["trials"]]
        except FileNotFoundError:
            continue
        except DamagedFileError as error:
            if path != newest:
                continue
            error.remedies = (f"delete {path}", "--fresh")
            raise
        if not differing_conditions(facts["conditions"], wanted):
            return [trial for trial in trials if _is_enough(trial, effort)]
    return []


def _is_enough(trial: Trial, effort: Effort) -> bool:
    if trial.timeout_s is not None:
        return trial.timeout_s >= effort.timeout_s
    return all(map(effort.is_enough, trial.medians.values()))


def changed_conditions(run: RunDirectory, wanted: dict[str, Any]) -> list[str]:
    """Returns the conditions of tune.json that differ, or an empty list without a sound file."""
    with suppress(DamagedFileError, FileNotFoundError):
        facts = read_json(run.path / TUNE_FILE, {"conditions": {}})
        return differing_conditions(facts["conditions"], wanted)
    return []


def differing_conditions(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Returns the conditions in which an earlier search differs from one that is wanted.

    Versions of rampcli may record other settings. One that the search did not record had its
    default, and one that is no longer recorded does not matter.
    """
    known = settings()
    return sorted(
        key
        for key in wanted | {key: None for key in found if key not in known}
        if found.get(key, known[key].default if key in known else ...) != wanted.get(key, ...)
    )


def _trial(row: dict[str, Any], path: Path) -> Trial:
    if row["verdict"] not in (FITS, OUT_OF_MEMORY, THRASHES, TIMED_OUT):
        raise DamagedFileError(f"{path} is damaged: a verdict is {row['verdict']!r}")
    medians = {
        median["accumulate_grad_batches"]: Median(
            **{name: median[name] for name in ("s", "low_s", "high_s", "steps")}
        )
        for median in row["medians"]
    }
    if row["verdict"] == FITS and not medians:
        raise DamagedFileError(f"{path} is damaged: a trial that fits has no times")
    return Trial(**{name: row.get(name) for name in FIELDS} | {"medians": medians})


def tune_json(
    conditions: dict[str, Any], trials: Sequence[Trial], sequence_length: int
) -> dict[str, Any]:
    """Returns the content of tune.json, which `rampcli tune --json` prints."""
    verdict = verdict_of(trials)
    measured = next((trial for trial in trials if trial.device is not None), None)
    return {
        "conditions": conditions,
        "device": measured and measured.device,
        "device_name": measured and measured.device_name,
        "largest": verdict and verdict.largest.micro_batch_size,
        "recommended": verdict and verdict.recommended.micro_batch_size,
        "others": verdict and [*verdict.others],
        "trials": [_row(trial, sequence_length) for trial in trials],
        "points": [
            point for trial in trials if trial.fits for point in points(trial, sequence_length)
        ],
    }


def _row(trial: Trial, sequence_length: int) -> dict[str, Any]:
    medians = [
        {"accumulate_grad_batches": count, **asdict(median)}
        for count, median in trial.medians.items()
    ]
    facts = {name: getattr(trial, name) for name in FIELDS} | {"medians": medians}
    if not trial.fits:
        return facts
    return facts | {
        "step_s": trial.step_s,
        "samples_per_s": trial.samples_per_s,
        "tokens_per_s": trial.samples_per_s * sequence_length,
    }


def points(trial: Trial, sequence_length: int) -> list[dict[str, float]]:
    """Returns the throughput of one GPU by micro batches per step, for `plan --measured`."""
    seconds = {count: median.s for count, median in trial.medians.items()}
    seconds[trial.accumulate_grad_batches] = trial.step_s
    per_micro_batch = trial.micro_batch_size * trial.data_parallel_size * sequence_length
    return [
        {
            "micro_batch_size": trial.micro_batch_size,
            "accumulate_grad_batches": count,
            "tokens_per_s_per_gpu": count * per_micro_batch / step_s / trial.world_size,
        }
        for count, step_s in sorted(seconds.items())
    ]
