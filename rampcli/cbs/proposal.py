"""Batches for a run that has measured its critical batch: the proposed one, beside others."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from rampcli.batch.node_policies import NODES_KEY
from rampcli.batch.plan import ACCUMULATE_KEY, GLOBAL_KEY
from rampcli.batch.ramp import RAMP_KEY, Threshold
from rampcli.batch.step_schedule import SCHEDULE_KEY, schedule_text
from rampcli.cbs.measured import CriticalBatch, doubling_ramp, from_sample, samples_beyond
from rampcli.config.compose import apply_overrides
from rampcli.errors import UsageError, shown
from rampcli.planning.batch_rules import retunings_of
from rampcli.planning.resolve import resolve
from rampcli.planning.run_plan import Resolved, ResolvedPhase
from rampcli.plugins.extensions import OPTIMIZER_KEY
from rampcli.settings.by_key import changes, leaves
from rampcli.settings.config import Config
from rampcli.settings.data import DataConfig
from rampcli.settings.facts import LEARNING, SAMPLES, TENSORS
from rampcli.settings.optim import ScheduleConfig
from rampcli.settings.optimizers import OPTIMIZERS
from rampcli.settings.phase_keys import UNTIL, phase_key

PROPOSE = "rampcli propose"
AS_IT_IS, SMALL, LARGE = "as it is", "fixed small", "fixed large"
WITHOUT_RAMP, PROPOSED, SEESAW = "no ramp", "proposed", "Seesaw"


@dataclass(frozen=True, kw_only=True, slots=True)
class Alternative:
    """A batch for the run.

    Attributes:
        name: of the candidate, or of several that are the same.
        words: overrides of the run's settings that train it. Empty if the run is like this.
        found: its plan, or why it does not fit.
        beyond: share of the samples that are beyond the critical batch.
        unknown: share of the samples for which that is unknown.
    """

    name: str
    words: tuple[str, ...]
    found: Resolved | UsageError
    beyond: float | None = None
    unknown: float | None = None


def thresholds_by_name(
    measured: Sequence[CriticalBatch], *, start: int, largest: int, end_sample: int
) -> dict[str, tuple[Threshold, ...]]:
    """Returns the batches to compare. Without measurements, there are only constant ones.

    Without a ramp, the batch is the largest one from `start` on that no measurement is below.

    Args:
        measured: in ascending order of `consumed_samples`.
        start: the smallest batch, in samples per step.
        largest: the largest batch: `start` times a power of two.
        end_sample: samples of the run.
    """
    found = {SMALL: _constant(start), LARGE: _constant(largest)}
    if measured:
        least = min(one.samples for one in measured)
        constant = start
        while 2 * constant <= min(least, largest):
            constant *= 2
        ramp = doubling_ramp(measured, start=start, largest=largest, end_sample=end_sample)
        found |= {WITHOUT_RAMP: _constant(constant), PROPOSED: ramp.thresholds}
    return found


def _constant(global_batch_size: int) -> tuple[Threshold, ...]:
    return (Threshold(0, global_batch_size),)


Schedule = tuple[tuple[Threshold, ...] | None, ...]
"""The batches of each phase, from its first sample on. None leaves a phase as it is."""


def schedules_by_name(
    run: Resolved,
    critical: Sequence[Sequence[CriticalBatch]],
    *,
    start: int | None,
    largest: int | None,
) -> dict[str, Schedule]:
    """Returns the batches to compare, phase by phase. A run without named phases is one.

    What needs measurements leaves a phase without any as it is.

    Args:
        run: whose end is known.
        critical: what was measured for each phase, in ascending order of `consumed_samples`.
        start: the first batch in samples. None is the smallest one of the phase.
        largest: as `largest_batch` takes it.

    Raises:
        UsageError: `start` or `largest` leave a phase no batch.
    """
    smallest = [
        min(stage.global_batch_size for stage in one.plan.ramp.stages) for one in run.phases
    ]
    shortest = min(run.phases, key=lambda one: one.plan.samples or 0)
    samples, first = shortest.plan.samples or 0, start or max(smallest)
    if start is not None and start > samples:
        raise UsageError(
            f"--start {start} is more than the {samples:,} samples of"
            f" {'the run' if shortest.plan.name is None else f'phase {shortest.plan.name}'}",
            remedy=f"--start {min(smallest)}",
        )
    if largest is not None and largest < first:
        raise UsageError(
            f"--largest {largest} is below the first batch of {first:,}",
            remedy=f"--largest {first}",
        )
    found = []
    for phase, measured, least in zip(run.phases, critical, smallest, strict=True):
        begin = start or least
        most = largest_batch(phase, measured, start=begin, limit=largest)
        of_phase = from_sample(measured, phase.plan.first.samples)
        found.append(
            thresholds_by_name(
                of_phase, start=begin, largest=most, end_sample=phase.plan.samples or 0
            )
        )
    names = dict.fromkeys(name for one in found for name in one)
    return {name: tuple(one.get(name) for one in found) for name in names}


def plan_alternative(
    name: str,
    words: Sequence[str],
    run: Resolved,
    critical: Sequence[Sequence[CriticalBatch]],
    *,
    couplings: Sequence[str] = (),
    is_retuned: bool = True,
) -> Alternative:
    """Returns an alternative with its plan, and with the settings that are tied to its batch.

    Args:
        words: overrides of the run's settings. Of several for one setting, the last one applies.
        run: whose settings are those `as_recipe` returns, and whose end is known.
        critical: what was measured for each phase, in ascending order of `consumed_samples`.
        couplings: overrides that let settings follow a batch that changes within the run.
        is_retuned: whether settings that are tied to the batch follow it.
    """
    words = _changing({_key_of(word): word for word in words}.values(), run)
    try:
        found = _resolved(run, [*words, *couplings])
        batches = {stage.global_batch_size for stage in found.plan.ramp.stages}
        is_growing = any(len(phase.plan.ramp.thresholds) > 1 for phase in found.phases)
        # Couplings compare tokens. With samples of several lengths, they would also change a phase
        # whose batch stays.
        is_coupled = is_growing or found.plan.has_one_length
        found = found if is_coupled else _resolved(run, words)
        retunings = retunings_of(found, run.config) if is_retuned else ()
        words += [
            *(couplings if is_coupled and len(batches) > 1 else ()),
            *(word for one in retunings for word in one.words()),
        ]
        found = _resolved(run, words)
    except UsageError as error:
        return Alternative(name=name, words=tuple(words), found=error)
    end = found.plan.end_sample
    assert end is not None
    counts = [
        samples_beyond(
            phase.plan.stages,
            measured,
            first_sample=phase.plan.first.samples,
            end_sample=phase.plan.first.samples + (phase.plan.samples or 0),
        )
        for phase, measured in zip(found.phases, critical, strict=False)
    ]
    beyond, unknown = map(sum, zip(*counts, strict=True))
    is_known = any(not one.is_lower_bound for measured in critical for one in measured)
    if dict(leaves(found.config)) == dict(leaves(run.config)):
        words = []
    return Alternative(
        name=name,
        words=tuple(words),
        found=found,
        beyond=beyond / end if is_known else None,
        unknown=unknown / end,
    )


def _resolved(run: Resolved, words: Sequence[str]) -> Resolved:
    return resolve(apply_overrides(run.config, words, place=PROPOSE), read_files=run.files_of)


def batch_words(schedule: Schedule, run: Resolved) -> list[str]:
    """Returns the overrides that give the phases of a run these batches and their samples."""
    words = []
    for phase, thresholds in zip(run.phases, schedule, strict=True):
        if thresholds is not None:
            words += phase.overrides(_batch_settings(thresholds, phase))
    end = run.plan.end_sample
    if run.config.phases:
        if not _changing(words, run):
            return []
        end = None
        for phase in run.phases:
            assert phase.plan.end is not None
            words += phase.overrides({UNTIL: f"samples:{phase.plan.end.samples}"})
    ends = {"trainer.max_steps": None, "trainer.max_tokens": None, "trainer.max_samples": end}
    return [*words, *(f"{key}={shown(value)}" for key, value in ends.items())]


def _batch_settings(thresholds: Sequence[Threshold], phase: ResolvedPhase) -> dict[str, Any]:
    """Returns the settings that give a phase its batches.

    A constant batch has the nodes of the stage with the largest batch up to it.
    """
    found: dict[str, Any] = {SCHEDULE_KEY: f"'{schedule_text(thresholds)}'", GLOBAL_KEY: None}
    if len(thresholds) == 1:
        size, stages = thresholds[0].global_batch_size, phase.plan.stages
        fitting = [stage for stage in stages if stage.global_batch_size <= size]
        stage = max(fitting or stages[:1], key=attrgetter("global_batch_size"))
        found = {GLOBAL_KEY: size, SCHEDULE_KEY: None, "trainer.num_nodes": stage.num_nodes}
    return found | dict.fromkeys((RAMP_KEY, ACCUMULATE_KEY, NODES_KEY))


def _key_of(word: str) -> str:
    return word.partition("=")[0]


def _changing(words: Iterable[str], run: Resolved) -> list[str]:
    """Returns the words without those that leave a setting as it is, in a phase or in the run."""
    values = dict(leaves(run.config))
    for phase in run.phases:
        if (name := phase.plan.name) is not None:
            values = {phase_key(name, key): one for key, one in leaves(phase.config)} | values
    return [word for word in words if word != f"{_key_of(word)}={shown(values[_key_of(word)])}"]


def coupling_words(config: Config, exponent: float | None) -> list[str]:
    """Returns the overrides that let settings follow the batch within a run.

    The learning rate follows with `exponent`. None leaves the run's coupling, or takes 0.5 if it
    has none. AdamW's second decay rate keeps its half-life in tokens. The weight decay keeps
    AdamW's timescale, for which no rule is known with Muon.
    """
    words = []
    if exponent is not None:
        words.append(f"{ScheduleConfig.batch_coupling}={exponent:g}")
    elif config.schedule.batch_coupling == "none":
        words.append(f"{ScheduleConfig.batch_coupling}=sqrt")
    if config.optim.optimizer in OPTIMIZERS:  # in each of them, AdamW has some parameters
        words.append("schedule.beta2_coupling=half_life")
    if config.optim.optimizer == "adamw":
        words.append("schedule.weight_decay_coupling=timescale")
    return words


def largest_batch(
    phase: ResolvedPhase, measured: Sequence[CriticalBatch], *, start: int, limit: int | None
) -> int:
    """Returns the largest batch to compare: the largest doubling of `start` that a limit allows.

    Args:
        limit: in samples. None stands for the largest batch of the phase or of the measurements.
    """
    if limit is None:
        sizes = [stage.global_batch_size for stage in phase.plan.ramp.stages]
        limit = int(max([*sizes, *(one.samples for one in measured)]))
    largest = start
    while 2 * largest <= limit:
        largest *= 2
    return largest


def differing_keys(one: Config, other: Config) -> list[str]:
    """Returns the settings in which runs measure different things: model, data or optimiser."""
    theirs = dict(leaves(other))
    return [key for key, value in leaves(one) if _is_measured(key) and theirs.get(key) != value]


def _is_measured(key: str) -> bool:
    """Returns whether the critical batch is measured for one value of a setting only.

    Another learning rate or another share of held-out samples leaves it about as it is.
    """
    section = key.partition(".")[0]
    return (
        changes(key, TENSORS | SAMPLES | LEARNING)
        and (section in ("model", "data") or key == OPTIMIZER_KEY)
        and key != DataConfig.split
    )
