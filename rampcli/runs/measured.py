"""Reads the throughput and the restarts that earlier runs measured, for the hours of a plan."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rampcli.batch.throughput import Size
from rampcli.config import snapshot
from rampcli.config.layers import PLAN_PLACE, stack_of
from rampcli.config.phases import settings_of_phases
from rampcli.errors import DamagedFileError, UsageError, shown
from rampcli.files.records import POSITIVE, RATE, read_json
from rampcli.runs.directory import PHASE_FOLDER, TUNE_FOLDER, RunDirectory, existing_run
from rampcli.runs.recorded_phases import phase_of
from rampcli.runs.rows import read_rows
from rampcli.settings.by_key import changes, leaves
from rampcli.settings.config import Config
from rampcli.settings.facts import SPEED, SPLIT
from rampcli.settings.trainer import TrainerConfig

WARM_UP_STEPS = 3
"""Steps at the start of a stage that are not counted, while memory and caches warm up."""
TUNE_FILE = "tune.json"
MEASURED_SHAPE = {
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
    """Measurements of earlier runs that hold for a phase.

    Attributes:
        points: median tokens per second per GPU; none if no earlier run computed as the phase does.
        phases: phases of the earlier runs that the points are from, by run.
        restart_s: median seconds that training lost at a stage boundary, or None without one.
        unlike: settings that the plan chooses and that decide throughput, as words with the value
            of an earlier run, if it differs.
        misfit: how the first of the earlier runs differs from the phase; None if one does not.
    """

    points: dict[Size, float]
    phases: dict[Path, tuple[str, ...]]
    restart_s: float | None
    unlike: tuple[str, ...] = ()
    misfit: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Source:
    """Measurements of one run, of one phase of a run, or of one search.

    Attributes:
        phase: name of the phase.
        points: median tokens per second per GPU.
        accelerators: kinds of devices that computed, as `trainer.accelerator` names them.
        device_names: names of these devices.
        lost_s: seconds that each stage boundary cost. The first phase of a run has them.
    """

    config: Config
    phase: str | None = None
    points: dict[Size, float]
    accelerators: set[str]
    device_names: list[str]
    lost_s: list[float]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Misfit:
    """A setting that decides throughput and that an earlier run had another value of.

    Attributes:
        ours: value of the phase that is planned.
        did: what the earlier run had or did, for a message.
        has: what the phase has, for a message.
    """

    key: str
    ours: str
    did: str
    has: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fit:
    """How a source fits a phase that is planned.

    Attributes:
        misfit: first setting that differs, or None if the source has measured what the phase
            computes.
        unlike: differing settings that the plan chooses, as words with the value of the source.
    """

    source: _Source
    misfit: _Misfit | None
    unlike: tuple[str, ...]


def read_measured(paths: Sequence[Path], phases: Mapping[str | None, Config]) -> list[Measured]:
    """Returns the throughput and restarts of runs and of tune results, together, for each phase.

    Args:
        paths: run directories, in which runs have trained or searches have measured. A point that
            several of them have is their median.
        phases: resolved settings of the phases of the run that is planned, by name.

    Raises:
        UsageError: a folder is not a run directory or has no throughput, or its run had another
            model, optimiser, precision, mesh or device than every phase.
        DamagedFileError: a file is damaged.
    """
    sources = {path: _sources(path) for path in paths}
    fits = {
        path: [[_fit(one, config) for one in ones] for config in phases.values()]
        for path, ones in sources.items()
    }
    devices: dict[str, Path] = {}
    for path, ones in sources.items():
        _check_serves(path, ones, fits[path], first_phase=next(iter(phases)))
        for name in (name for one in ones for name in one.device_names):
            devices.setdefault(name, path)
    if len(devices) > 1:
        named = " and ".join(f"{name} ({path})" for name, path in devices.items())
        raise UsageError(
            f"--measured: throughputs of different devices cannot be combined: {named}",
            remedy="the directories of runs on one kind of device",
        )
    lost_s = [s for ones in sources.values() for one in ones for s in one.lost_s]
    restart_s = round(median(lost_s), 3) if lost_s else None
    return [
        _measured_for({path: ones[index] for path, ones in fits.items()}, restart_s)
        for index in range(len(phases))
    ]


def _check_serves(
    path: Path,
    sources: Sequence[_Source],
    fits: Sequence[Sequence[_Fit]],
    *,
    first_phase: str | None,
) -> None:
    """Checks that a folder has measured what a phase computes.

    A run with phases may have others than the run that is planned, if one of them is the same.

    Args:
        fits: of each phase that is planned, to all sources.
        first_phase: name of the first phase that is planned.
    """
    if not any(source.points for source in sources):
        existing_run(path)
        raise _too_short(path)
    serves = [any(fit.misfit is None for fit in of_source) for of_source in zip(*fits, strict=True)]
    for fit, is_served in zip(fits[0], serves, strict=True):
        needed = fit.source.phase is None or not any(serves)
        if fit.misfit is not None and needed and not is_served:
            phase, other = fit.source.phase, fit.misfit
            that = "that run" if phase is None else f"phase {phase} of that run"
            this = "this one" if first_phase is None else f"phase {first_phase} of this one"
            raise UsageError(
                f"--measured {path}: {that} {other.did}, and {this} has {other.has}",
                keys=(other.key,),
                remedy=f"the directory of a run with {other.key}={other.ours}",
            )
    if not any(one.points for one, is_served in zip(sources, serves, strict=True) if is_served):
        raise _too_short(path)


def _too_short(path: Path) -> UsageError:
    return UsageError(
        f"--measured {path}: no stage has more than {WARM_UP_STEPS} steps,"
        f" and there is no {TUNE_FILE}",
        remedy="the directory of a longer run",
    )


def _measured_for(fits: Mapping[Path, Sequence[_Fit]], restart_s: float | None) -> Measured:
    """Returns the measurements that hold for a phase, whose fits to all sources are given."""
    found: dict[Size, list[float]] = defaultdict(list)
    misfits: list[str] = []
    for path, ones in fits.items():
        points: dict[Size, list[float]] = defaultdict(list)
        for fit in ones:
            phase = fit.source.phase
            if fit.misfit is not None:
                where = str(path) if phase is None else f"phase {phase} of {path}"
                misfits.append(f"{where} {fit.misfit.did}, and it has {fit.misfit.has}")
                continue
            for point, rate in fit.source.points.items():
                # A search has more measurements of a point than a run beside it.
                points[point] = [rate] if phase is None else [*points[point], rate]
        for point, rates in points.items():
            found[point].append(median(rates))
    used = {
        path: tuple(
            fit.source.phase
            for fit in ones
            if fit.misfit is None and fit.source.phase is not None and fit.source.points
        )
        for path, ones in fits.items()
    }
    whole = [fit for ones in fits.values() for fit in ones]
    unlike = (word for fit in whole if fit.misfit is None for word in fit.unlike)
    return Measured(
        points={point: round(median(rates), 1) for point, rates in sorted(found.items())},
        phases={path: names for path, names in used.items() if names},
        restart_s=restart_s,
        unlike=tuple(dict.fromkeys(unlike)),
        misfit=misfits[0] if len(misfits) == len(whole) else None,
    )


def has_throughput(path: Path) -> bool:
    """Returns whether a run directory or a search has measured the throughput of any size."""
    return any(source.points for source in _sources(path))


def _sources(path: Path) -> list[_Source]:
    """Returns the measurements of a folder. Those of searches come last."""
    of_phases = sorted((path / TUNE_FOLDER).glob(f"{PHASE_FOLDER}*"))
    return [*_read_run(path), *(one for each in (path, *of_phases) for one in _read_tune(each))]


def _read_run(path: Path) -> Iterator[_Source]:
    """Yields the measurements of the phases of a run, or nothing if the path holds no run."""
    run = RunDirectory(path)
    if not run.config.is_file():
        return
    config, events = snapshot.read(run.config), list(read_rows(run.events))
    starts = [row for row in events if row["event"] == "start"]
    phases = {one.name: one.config for one in settings_of_phases(config)}
    points = _run_points(run, phases)
    lost_s = [max(0.0, row["lost_s"]) for row in events if row["event"] == "boundary"]
    for name, of_phase in phases.items():
        yield _Source(
            config=of_phase,
            phase=name,
            points=points[name],
            accelerators={_kind(row["device"]) for row in starts if "device" in row},
            device_names=[
                row["device_name"] for row in starts if row.get("device_name") is not None
            ],
            lost_s=lost_s if name == next(iter(phases)) else [],  # the run counts once
        )


def _read_tune(path: Path) -> Iterator[_Source]:
    """Yields the measurements of a search, or nothing without `TUNE_FILE`."""
    try:
        tune = read_json(path / TUNE_FILE, MEASURED_SHAPE)
    except FileNotFoundError:
        return
    rates: dict[Size, list[float]] = defaultdict(list)
    for one in tune["points"]:
        point = one["micro_batch_size"], one["accumulate_grad_batches"]
        rates[point].append(one["tokens_per_s_per_gpu"])
    name, device = tune["device_name"], tune["device"]
    yield _Source(
        config=snapshot.read(RunDirectory(path / TUNE_FOLDER).config),
        points={point: median(several) for point, several in rates.items()},
        accelerators=set() if device is None else {_kind(device)},
        device_names=[] if name is None else [name],
        lost_s=[],
    )


def _run_points(
    run: RunDirectory, phases: Mapping[str | None, Config]
) -> dict[str | None, dict[Size, float]]:
    """Returns the median rates in metrics.jsonl by phase, without the first steps of each stage."""
    plan = None if None in phases else run.read_plan()
    if plan is None and None not in phases:
        raise DamagedFileError(f"{run.path} has no plan.json, which says what each phase trained")
    rates = {name: defaultdict[Size, list[float]](list) for name in phases}
    steps: dict[tuple[int, int], int] = defaultdict(int)
    for row in read_rows(run.metrics):
        world_size, count = row["world_size"], row["accumulate_grad_batches"]
        steps[row["stage"], world_size] += 1
        name = phase_of(plan, row["stage"])
        if name not in phases:  # it was dropped after it had been trained
            continue
        parallel = phases[name].parallel
        ranks = (
            parallel.tensor_parallel_size
            * parallel.pipeline_parallel_size
            * parallel.context_parallel_size
        )
        micro, rest = divmod(row["global_batch_size"] * ranks, world_size * count)
        if rest or not micro:
            raise DamagedFileError(
                f"{run.metrics} is damaged: the batch of {row['global_batch_size']} samples in step"
                f" {row['step']} does not divide into {count} micro batches on {world_size}"
                " processes"
            )
        if steps[row["stage"], world_size] > WARM_UP_STEPS:
            rates[name][micro, count].append(row["tokens_per_s"] / world_size)
    return {
        name: {point: median(several) for point, several in points.items()}
        for name, points in rates.items()
    }


def _fit(source: _Source, ours: Config) -> _Fit:
    """Compares the settings that decide throughput at a given division of the batch."""
    earlier, stack = dict(leaves(source.config)), stack_of(ours)
    misfits, unlike = list[_Misfit](), list[str]()
    for key, value in leaves(ours):
        if earlier[key] == value or not changes(key, SPEED) or changes(key, SPLIT):
            continue
        theirs = f"{key}={shown(earlier[key])}"
        if stack.entry(key).place == PLAN_PLACE:
            unlike.append(theirs)
        else:
            own = str(shown(value))
            misfits.append(_Misfit(key=key, ours=own, did=f"had {theirs}", has=own))
    key, wanted = TrainerConfig.accelerator, ours.trainer.accelerator
    misfits += [
        _Misfit(key=key, ours=wanted, did=f"trained on the {kind}", has=f"{key}={wanted}")
        for kind in sorted(source.accelerators or {source.config.trainer.accelerator})
        if "auto" not in (kind, wanted) and kind != wanted
    ]
    return _Fit(source=source, misfit=next(iter(misfits), None), unlike=tuple(unlike))


def _kind(device: str) -> str:
    """Returns the `trainer.accelerator` of a torch device such as `cuda:0`."""
    return "cpu" if device == "cpu" else "gpu"
