"""The learning rate of each phase of a run.

A phase without a schedule of its own has its part of the schedule of the run, which covers all
phases. Samples may differ in length between phases, so that schedule counts pieces of samples: the
longest ones of which all samples are whole multiples. If all samples have one length, or are
prompts, these are samples. A schedule of a phase's own counts its samples.
"""

import math
from collections.abc import Sequence
from typing import Any

from rampcli.batch.training_plan import PhasePlan, TrainingPlan
from rampcli.config.extension_settings import extension_function
from rampcli.config.layers import sources_named
from rampcli.config.phases import PhaseSettings, sets_rate
from rampcli.errors import UsageError, set_to
from rampcli.plugins.extensions import DECAY_STYLE_KEY
from rampcli.schedule.learning_rate import DECAY_STYLES, WSD_SHARE, LearningRate
from rampcli.settings.config import Config
from rampcli.settings.data import DataConfig
from rampcli.settings.optim import OptimConfig, ScheduleConfig
from rampcli.settings.phase_keys import phase_key
from rampcli.settings.rl import is_rl

WARMUP_KEYS = (OptimConfig.warmup_steps, OptimConfig.warmup_samples)
CONTINUE, RESTART = "continue", "restart"


def rates_of_phases(phases: Sequence[PhaseSettings], plan: TrainingPlan) -> list[LearningRate]:
    """Returns the learning rate of each phase.

    Raises:
        UsageError: a phase begins a schedule in a way that its settings contradict.
    """
    if is_rl(phases[0].config):
        plan = plan.in_samples()
    largest = max(
        stage.global_batch_size * plan.of(stage).sequence_length for stage in plan.ramp.stages
    )
    found: list[LearningRate] = []
    for one, phase in zip(phases, plan.phases, strict=True):
        with sources_named(one.config):
            if sets_rate(one.own):
                before = _rate_at_end(plan.phases[len(found) - 1], found[-1]) if found else None
                begin = _beginning(one.config, phase, one.own, before)
                found.append(_own_rate(one.config, phase, begin, largest))
            else:
                _check_counts_any_length(one.config, plan)
                found.append(_part_of_run(one.config, phase, plan, largest))
    return found


def _own_rate(
    config: Config, phase: PhasePlan, begin: tuple[float, float, int], largest: int
) -> LearningRate:
    """Returns the schedule of a phase, which counts its samples.

    Args:
        begin: from `_beginning`.
        largest: tokens of the largest batch of the run.
    """
    start, peak, warmup = begin
    return _schedule(
        config,
        phase,
        start=start,
        peak=peak,
        warmup_samples=warmup // phase.sequence_length,
        end_sample=phase.samples,
        wsd_decay_samples=config.schedule.wsd_decay_samples,
        first_batch_size=phase.extents[0].global_batch_size,
        largest_batch_size=largest / phase.sequence_length,
    )


def _part_of_run(
    config: Config, phase: PhasePlan, plan: TrainingPlan, largest: int
) -> LearningRate:
    """Returns the schedule of the run, which counts pieces of samples, in a phase.

    Args:
        largest: tokens of the largest batch of the run.
    """
    piece = math.gcd(*(one.sequence_length for one in plan.phases))
    first, end, decay = plan.phases[0], plan.end_sample, config.schedule.wsd_decay_samples
    if decay is not None and end is not None:
        decay = (plan.tokens_at(end) - plan.tokens_at(max(0, end - decay))) // piece
    return _schedule(
        config,
        phase,
        peak=config.optim.lr,
        warmup_samples=_warmup_of_run(config, plan) // piece,
        end_sample=None if plan.end_tokens is None else plan.end_tokens // piece,
        wsd_decay_samples=None if end is None else decay,
        first_batch_size=first.extents[0].global_batch_size * first.sequence_length // piece,
        largest_batch_size=largest / piece,
        first_count=phase.first.tokens // piece,
        counts_per_sample=phase.sequence_length // piece,
    )


def _schedule(
    config: Config,
    phase: PhasePlan,
    *,
    end_sample: int | None,
    wsd_decay_samples: int | None,
    first_count: int = 0,
    counts_per_sample: int = 1,
    **counts: Any,
) -> LearningRate:
    """Returns a schedule, from its counts and the settings."""
    if wsd_decay_samples is None and end_sample is not None:
        wsd_decay_samples = round(end_sample * WSD_SHARE)
    schedule, first_sample = config.schedule, phase.first.samples
    return LearningRate(
        decay_style=schedule.decay_style,
        floor=config.optim.min_lr,
        end_sample=end_sample,
        wsd_decay_samples=wsd_decay_samples,
        batch_coupling=schedule.batch_coupling,
        lr_factors=schedule.lr_factors,
        stage_starts=tuple(
            first_count + (stage.first_sample - first_sample) * counts_per_sample
            for stage in phase.extents
        ),
        own_decay=extension_function(DECAY_STYLE_KEY, schedule.decay_style, schedule),
        first_sample=first_sample,
        first_count=first_count,
        counts_per_sample=counts_per_sample,
        **counts,
    )


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


def _rate_at_end(phase: PhasePlan, rate: LearningRate) -> float:
    """Returns the rate of a phase's last step, before its batch scales it."""
    assert phase.end is not None
    last = phase.extents[-1]
    return rate.uncoupled_at(phase.end.samples, global_batch_size=last.global_batch_size)
