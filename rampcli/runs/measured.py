"""Reads the throughput and the restarts that earlier runs measured, for the hours of a plan."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rampcli.batch.throughput import Size
from rampcli.config import snapshot
from rampcli.config.layers import PLAN, stack_of
from rampcli.errors import DamagedFileError, UsageError, shown
from rampcli.files.records import POSITIVE, RATE, read_json
from rampcli.runs.directory import RunDirectory, existing_run
from rampcli.runs.rows import read_rows
from rampcli.settings.by_key import changes, leaves
from rampcli.settings.config import Config
from rampcli.settings.facts import SPEED, SPLIT
from rampcli.settings.trainer import TrainerConfig

WARM_UP_STEPS = 3
"""Steps at the start of a stage that are not counted, while memory and caches warm up."""
TUNE_FILE = "tune.json"
TUNE_FOLDER = "tune"
"""Folder with the `config.yaml` under which `TUNE_FILE` was measured."""
TUNE = {
    "device": (str, None),
    "device_name": (str, None),
    "points": [
        {
            "micro_batch_size": POSITIVE,
            "accumulate_grad_batches": POSITIVE,
            "tokens_per_s_per_gpu": RATE,
        }
    ],
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Measurements of earlier runs.

    Attributes:
        points: median tokens per second per GPU.
        restart_s: median seconds that training lost at a stage boundary, or None without one.
        unlike: settings that the plan chooses and that decide throughput, as words with the value
            of an earlier run, if it differs.
    """

    points: dict[Size, float]
    restart_s: float | None
    unlike: tuple[str, ...] = ()


def read_measured(paths: Sequence[Path], config: Config) -> Measured:
    """Returns the throughput and restarts of runs and of tune results, all together.

    Args:
        paths: run directories, in which runs have trained or searches have measured. A point that
            several of them have is their median.
        config: resolved settings of the run that is planned.

    Raises:
        UsageError: a folder is not a run directory or has no throughput, or its run had another
            model, optimiser, precision, mesh or device.
        DamagedFileError: a file is damaged.
    """
    found: dict[Size, list[float]] = defaultdict(list)
    lost_s: list[float] = []
    unlike: list[str] = []
    devices: dict[str, Path] = {}
    for path in paths:
        sources = _sources(path)
        if not any(source.points for source in sources):
            existing_run(path)
            raise UsageError(
                f"--measured {path}: no stage has more than {WARM_UP_STEPS} steps,"
                f" and there is no {TUNE_FILE}",
                remedy="the directory of a longer run",
            )
        points: dict[Size, float] = {}
        for source in sources:
            unlike += _check_same(path, source.config, config)
            _check_accelerator(path, source, config)
            for name in source.device_names:
                devices.setdefault(name, path)
            points |= source.points
            lost_s += source.lost_s
        for point, rate in points.items():
            found[point].append(rate)
    if len(devices) > 1:
        named = " and ".join(f"{name} ({path})" for name, path in devices.items())
        raise UsageError(
            f"--measured: throughputs of different devices cannot be combined: {named}",
            remedy="the directories of runs on one kind of device",
        )
    return Measured(
        points={point: round(median(rates), 1) for point, rates in sorted(found.items())},
        restart_s=round(median(lost_s), 3) if lost_s else None,
        unlike=tuple(dict.fromkeys(unlike)),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Source:
    """Measurements of one run or search.

    Attributes:
        points: median tokens per second per GPU.
        accelerators: kinds of devices that computed, as `trainer.accelerator` names them.
        device_names: names of these devices.
        lost_s: seconds that each stage boundary cost.
    """

    config: Config
    points: dict[Size, float]
    accelerators: set[str]
    device_names: list[str]
    lost_s: list[float]


def has_throughput(path: Path) -> bool:
    """Returns whether a run directory or a search has measured the throughput of any size."""
    return any(source.points for source in _sources(path))


def _sources(path: Path) -> list[_Source]:
    return [one for one in (_read_run(path), _read_tune(path)) if one is not None]


def _read_run(path: Path) -> _Source | None:
    """Returns the measurements of a run, or None if the path holds no run."""
    run = RunDirectory(path)
    if not run.config.is_file():
        return None
    config, events = snapshot.read(run.config), list(read_rows(run.events))
    starts = [row for row in events if row["event"] == "start"]
    return _Source(
        config=config,
        points=_run_points(run, config),
        accelerators={_kind(row["device"]) for row in starts if "device" in row},
        device_names=[row["device_name"] for row in starts if row.get("device_name") is not None],
        lost_s=[max(0.0, row["lost_s"]) for row in events if row["event"] == "boundary"],
    )


def _read_tune(path: Path) -> _Source | None:
    """Returns the measurements of a search, or None without `TUNE_FILE`."""
    try:
        tune = read_json(path / TUNE_FILE, TUNE)
    except FileNotFoundError:
        return None
    rates: dict[Size, list[float]] = defaultdict(list)
    for one in tune["points"]:
        point = one["micro_batch_size"], one["accumulate_grad_batches"]
        rates[point].append(one["tokens_per_s_per_gpu"])
    name, device = tune["device_name"], tune["device"]
    return _Source(
        config=snapshot.read(RunDirectory(path / TUNE_FOLDER).config),
        points={point: median(several) for point, several in rates.items()},
        accelerators=set() if device is None else {_kind(device)},
        device_names=[] if name is None else [name],
        lost_s=[],
    )


def _run_points(run: RunDirectory, config: Config) -> dict[Size, float]:
    """Returns the median rates in metrics.jsonl, without the first steps of each stage."""
    parallel = config.parallel
    model_ranks = (
        parallel.tensor_parallel_size
        * parallel.pipeline_parallel_size
        * parallel.context_parallel_size
    )
    rates: dict[Size, list[float]] = defaultdict(list)
    steps: dict[tuple[int, int], int] = defaultdict(int)
    for row in read_rows(run.metrics):
        world_size, count = row["world_size"], row["accumulate_grad_batches"]
        steps[row["stage"], world_size] += 1
        micro, rest = divmod(row["global_batch_size"] * model_ranks, world_size * count)
        if rest or not micro:
            raise DamagedFileError(
                f"{run.metrics} is damaged: the batch of {row['global_batch_size']} samples in step"
                f" {row['step']} does not divide into {count} micro batches on {world_size}"
                " processes"
            )
        if steps[row["stage"], world_size] > WARM_UP_STEPS:
            rates[micro, count].append(row["tokens_per_s"] / world_size)
    return {point: median(several) for point, several in rates.items()}


def _check_same(path: Path, theirs: Config, ours: Config) -> Iterator[str]:
    """Checks that an earlier run had the same settings as far as they decide throughput.

    Yields the differing ones that the plan chooses, as words with the value of the earlier run.
    """
    earlier, stack = dict(leaves(theirs)), stack_of(ours)
    for key, value in leaves(ours):
        decides = changes(key, SPEED) and not changes(key, SPLIT)
        if decides and earlier[key] != value:
            if stack.entry(key).place == PLAN:
                yield f"{key}={shown(earlier[key])}"
                continue
            raise UsageError(
                f"--measured {path}: that run had {key}={shown(earlier[key])}, and this one has"
                f" {shown(value)}",
                keys=(key,),
                remedy=f"the directory of a run with {key}={shown(value)}",
            )


def _check_accelerator(path: Path, source: _Source, ours: Config) -> None:
    """Checks that an earlier run trained on the kind of device that is asked for, if one is."""
    wanted = ours.trainer.accelerator
    for kind in sorted(source.accelerators or {source.config.trainer.accelerator}):
        if "auto" not in (kind, wanted) and kind != wanted:
            raise UsageError(
                f"--measured {path}: that run trained on the {kind}, and this one has"
                f" trainer.accelerator={wanted}",
                keys=(TrainerConfig.accelerator,),
                remedy=f"the directory of a run with trainer.accelerator={wanted}",
            )


def _kind(device: str) -> str:
    """Returns the `trainer.accelerator` of a torch device such as `cuda:0`."""
    return "cpu" if device == "cpu" else "gpu"
