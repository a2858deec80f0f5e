"""The learning rate of each phase of a run.

A phase without a schedule of its own has its part of the schedule of the run, which covers all
phases. Samples may differ in length between phases, so that schedule counts pieces of samples: the
longest ones of which all samples are whole multiples. If all samples have one length, these are
samples. A schedule of a phase's own counts its samples.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rampcli.batch.training_plan import PhasePlan, TrainingPlan
from rampcli.config.extension_settings import extension_function
from rampcli.config.layers import sources_named
from rampcli.config.phases import PhaseSettings, sets_rate
from rampcli.errors import UsageError, set_to
from rampcli.plugins.extensions import DECAY_STYLE
from rampcli.schedule.learning_rate import DECAY_STYLES, WSD_SHARE, LearningRate
from rampcli.schedule.phase_rate import PhaseRate
from rampcli.settings.config import Config
from rampcli.settings.data import DataConfig
from rampcli.settings.optim import OptimConfig, ScheduleConfig
from rampcli.settings.phase_keys import phase_key

WARMUP_KEYS = (OptimConfig.warmup_steps, OptimConfig.warmup_samples)
CONTINUE, RESTART = "continue", "restart"


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """What a schedule covers: the whole run, or one phase.

    Attributes:
        unit: tokens that the schedule counts as one.
        tokens: its length, or None without an end.
        decay_tokens: length of the final decay that `schedule.wsd_decay_samples` asks for, or None.
        first_batch: tokens of its first batch.
        stage_starts: tokens before each stage of the phase, from the start of the schedule.
    """

    unit: int
    tokens: int | None
    decay_tokens: int | None
    first_batch: int
    stage_starts: tuple[int, ...]


def rates_of_phases(phases: Sequence[PhaseSettings], plan: TrainingPlan) -> list[PhaseRate]:
    """Returns the learning rate of each phase.

    Raises:
        UsageError: a phase begins a schedule in a way that its settings contradict.
    """
    largest = max(
        stage.global_batch_size * plan.of(stage).sequence_length for stage in plan.ramp.stages
    )
    found: list[PhaseRate] = []
    for one, phase in zip(phases, plan.phases, strict=True):
        config, keys = one.config, one.own
        if sets_rate(keys):
            before = _rate_at_end(plan.phases[len(found) - 1], found[-1]) if found else None
            with sources_named(config):
                start, peak, warmup = _beginning(config, phase, keys, before)
            span, first_token = _span_of_phase(config, phase), 0
        else:
            with sources_named(config):
                _check_counts_any_length(config, plan)
            start, peak, warmup = 0.0, config.optim.lr, _warmup_of_run(config, plan)
            span, first_token = _span_of_run(config, phase, plan), phase.first.tokens
        schedule = _schedule(config, span, largest)
        found.append(
            PhaseRate(
                schedule=replace(
                    schedule, start=start, peak=peak, warmup_samples=warmup // span.unit
                ),
                first_sample=phase.first.samples,
                first_count=first_token // span.unit,
                counts_per_sample=phase.sequence_length // span.unit,
            )
        )
    return found


def _schedule(config: Config, span: Span, largest: int) -> LearningRate:
    """Returns a schedule over a span, without a warm-up.

    Args:
        largest: tokens of the largest batch of the run.
    """
    optim, schedule = config.optim, config.schedule
    end = None if span.tokens is None else span.tokens // span.unit
    decay = None if span.decay_tokens is None else span.decay_tokens // span.unit
    if decay is None and end is not None:
        decay = round(end * WSD_SHARE)
    return LearningRate(
        decay_style=schedule.decay_style,
        peak=optim.lr,
        floor=optim.min_lr,
        warmup_samples=0,
        end_sample=end,
        wsd_decay_samples=decay,
        batch_coupling=schedule.batch_coupling,
        first_batch_size=span.first_batch // span.unit,
        largest_batch_size=largest / span.unit,
        lr_factors=schedule.lr_factors,
        stage_starts=tuple(tokens // span.unit for tokens in span.stage_starts),
        own_decay=extension_function(DECAY_STYLE, schedule.decay_style, schedule),
    )


def _span_of_run(config: Config, phase: PhasePlan, plan: TrainingPlan) -> Span:
    first, end = plan.phases[0], plan.end_sample
    decay = config.schedule.wsd_decay_samples
    return Span(
        unit=math.gcd(*(one.sequence_length for one in plan.phases)),
        tokens=plan.end_tokens,
        decay_tokens=None
        if decay is None or end is None
        else plan.tokens_at(end) - plan.tokens_at(max(0, end - decay)),
        first_batch=_first_batch(first),
        stage_starts=tuple(map(phase.tokens_at, _stage_starts(phase))),
    )


def _span_of_phase(config: Config, phase: PhasePlan) -> Span:
    length, decay = phase.sequence_length, config.schedule.wsd_decay_samples
    return Span(
        unit=length,
        tokens=None if phase.samples is None else phase.samples * length,
        decay_tokens=None if decay is None else decay * length,
        first_batch=_first_batch(phase),
        stage_starts=tuple(
            (start - phase.first.samples) * length for start in _stage_starts(phase)
        ),
    )


def _stage_starts(phase: PhasePlan) -> Iterator[int]:
    return (stage.first_sample for stage in phase.extents)


def _first_batch(phase: PhasePlan) -> int:
    stages = phase.extents
    return stages[0].global_batch_size * phase.sequence_length


def _warmup_of_run(config: Config, plan: TrainingPlan) -> int:
    """Returns the tokens of the warm-up of the run."""
    steps = config.optim.warmup_steps
    samples = config.optim.warmup_samples or 0
    return plan.tokens_at(samples if steps is None else plan.samples_at(steps))


def _beginning(
    config: Config, phase: PhasePlan, keys: frozenset[str], before: float | None
) -> tuple[float, float, int]:
    """Returns how a phase's own schedule begins: its first rate, its peak, and warm-up in tokens.

    Args:
        before: rate at which the phase before it has ended, or None if it is the first phase.
    """
    optim, lr = config.optim, config.optim.lr
    has_warmup = before is None or not keys.isdisjoint(WARMUP_KEYS)
    warmup = 0
    if has_warmup:
        steps = optim.warmup_steps
        samples = optim.warmup_samples or 0 if steps is None else phase.ramp.samples_after(steps)
        warmup = samples * phase.sequence_length
    _check_warmup(config, phase, warmup)
    if before is None and config.schedule.begin == CONTINUE and ScheduleConfig.begin in keys:
        raise UsageError(
            f"phase {phase.name}: {ScheduleConfig.begin}={CONTINUE} goes on from the phase before"
            " it, and this"
            " is the first one",
            keys=(ScheduleConfig.begin,),
            remedy=set_to(phase_key(str(phase.name), ScheduleConfig.begin), None),
        )
    if before is None or not continues_rate(config, keys):
        return 0.0, lr, warmup
    if warmup:
        return before, lr, warmup
    if OptimConfig.lr in keys:
        word = phase_key(str(phase.name), ScheduleConfig.begin)
        raise UsageError(
            f"phase {phase.name}: {ScheduleConfig.begin}={CONTINUE} begins at the rate"
            f" {before:.3g} at which"
            f" the phase before it ends, so {OptimConfig.lr}={lr:g} would never apply",
            keys=(ScheduleConfig.begin, OptimConfig.lr),
            remedy=[
                set_to(word, RESTART),
                set_to(phase_key(str(phase.name), WARMUP_KEYS[0]), 100, note=", which leads there"),
            ],
        )
    return before, before, 0


def continues_rate(config: Config, keys: frozenset[str]) -> bool:
    """Returns whether the own schedule of a later phase begins where the phase before it ends.

    Args:
        keys: settings that the phase sets itself.
    """
    begin = config.schedule.begin or (RESTART if OptimConfig.lr in keys else CONTINUE)
    return begin == CONTINUE


def _check_counts_any_length(config: Config, plan: TrainingPlan) -> None:
    """Checks that a schedule of the run need not count samples, if these differ in length."""
    style = config.schedule.decay_style
    if style in DECAY_STYLES or plan.has_one_length:
        return
    raise UsageError(
        f"schedule.decay_style={style} counts samples, which differ in length between the phases",
        keys=(ScheduleConfig.decay_style, DataConfig.sequence_length),
        remedy=[set_to(ScheduleConfig.decay_style, "linear"), "one data.sequence_length"],
    )


def _check_warmup(config: Config, phase: PhasePlan, warmup: int) -> None:
    style = DECAY_STYLES.get(config.schedule.decay_style)
    if style is not None and style.needs_warmup and not warmup:
        raise UsageError(
            f"phase {phase.name}: schedule.decay_style={config.schedule.decay_style} needs a"
            " warm-up in the phase",
            keys=(ScheduleConfig.decay_style, *WARMUP_KEYS),
            remedy=set_to(phase_key(str(phase.name), WARMUP_KEYS[0]), 100),
        )


def _rate_at_end(phase: PhasePlan, rate: PhaseRate) -> float:
    """Returns the rate of a phase's last step, before its batch scales it."""
    assert phase.end is not None
    last = phase.extents[-1]
    return rate.uncoupled_at(phase.end.samples, global_batch_size=last.global_batch_size)
