"""`rampcli plan --seesaw`: a batch that grows where the learning rate would fall.

Each phase of a run has stairs of its own. They go on from those of the phase before if the learning
rate goes on and the phase sets no batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any

from rampcli.batch.node_policies import NODE_POLICIES, NODES_KEY
from rampcli.batch.pairs import GENERATIONS_KEY
from rampcli.batch.plan import ACCUMULATE_KEY, GLOBAL_KEY, MICRO_KEY
from rampcli.batch.position import STEPS_UNIT, parse_goal
from rampcli.batch.ramp import RAMP_KEY, RampSchedule
from rampcli.batch.step_schedule import SCHEDULE_KEY, schedule_text
from rampcli.config.compose import apply_overrides
from rampcli.config.layers import sources_named
from rampcli.config.phases import PhaseErrors, sets_batch, sets_rate
from rampcli.errors import ErrorReport, UsageError, set_to, typeable
from rampcli.planning.phase_rates import CONTINUE, RESTART, WARMUP_KEYS, continues_rate
from rampcli.planning.resolve import resolve
from rampcli.planning.run_plan import Resolved, ResolvedPhase
from rampcli.schedule.seesaw import staircase, steps_in_the_limit
from rampcli.settings.optim import OptimConfig, ScheduleConfig
from rampcli.settings.phase_keys import UNTIL, phase_key, split_phase_key
from rampcli.settings.rl import is_rl
from rampcli.settings.trainer import TrainerConfig
from rampcli.words import COMBINED, SPELLINGS, unwrapped


@dataclass(kw_only=True, slots=True)
class Growth:
    """How the batch of a run grows in place of a decay.

    Attributes:
        words: overrides that train it.
        limit_steps: optimiser steps of the run in the limit of small stairs.
        notes: phases that stay as they are, and why.
    """

    words: list[str] = field(default_factory=list)
    limit_steps: float = 0.0
    notes: list[str] = field(default_factory=list)


def seesaw(
    resolved: Resolved, factor: float, typed: Sequence[str] = ()
) -> tuple[Resolved, list[str]]:
    """Returns a plan whose batch grows where the learning rate would fall, and lines about it.

    The other arguments and the errors are those of `growth_of`.

    Args:
        typed: words of the command line. Those that train the growth replace them.
    """
    growth = growth_of(resolved, factor)
    stack = apply_overrides(resolved.config, growth.words, place="--seesaw")
    grown = resolve(stack, read_files=resolved.files_of)
    growing = {one.plan.name for one in grown.phases if one.config.schedule.decay_style == "seesaw"}
    retunings = (  # the learning rate stays that of the batch before it grows
        replace(one, grows=one.phase in growing if one.phase else bool(growing))
        for one in resolved.retunings
    )
    grown = replace(grown, notes=(*grown.notes, *growth.notes), retunings=tuple(retunings))
    steps = resolved.plan.end_step
    words = {word.partition("=")[0]: word for word in growth.words}
    # Phases run in the order in which they are first named, so words keep their places.
    kept: dict[str, str] = {}
    adapted = [word for one in resolved.retunings for word in one.words("applied")]
    for word in (*typed, *adapted):
        key, *others = _keys_of(word)
        if words.keys().isdisjoint(others):
            kept[key if key in words else word] = words.get(key, word)
    lines = ["train it with:", "  " + " ".join(map(typeable, (kept | words).values()))]
    if steps and grown.plan.end_step:
        lines.insert(
            0,
            f"seesaw (arXiv 2510.14717): {steps:,} steps become {grown.plan.end_step:,},"
            f" {1 - grown.plan.end_step / steps:.1%} fewer;"
            f" {1 - growth.limit_steps / steps:.1%} in the limit of small stairs",
        )
    return grown, lines


def _keys_of(word: str) -> tuple[str, ...]:
    """Returns the setting of a word of the command line, and the others that the word decides."""
    key = unwrapped(word.lstrip("+").partition("=")[0])
    if (parts := split_phase_key(key)) is not None:
        name, inside = parts
        return (phase_key(name, SPELLINGS.get(inside, inside)),)
    if key in COMBINED:
        return key, *COMBINED[key].replaces
    return (SPELLINGS.get(key, key),)


def growth_of(resolved: Resolved, factor: float) -> Growth:
    """Returns how the batch grows where the learning rate would fall.

    Args:
        resolved: a plan. Phases whose batch changes already stay as they are.
        factor: growth of the batch from one stair to the next; above 1.

    Raises:
        UsageError: the batch of no phase can grow, or this is a run of reinforcement learning.
    """
    with sources_named(resolved.config):
        _check_run(resolved, factor)
    growth, errors, before = Growth(), PhaseErrors(), None
    for phase in resolved.phases:
        name, found = phase.plan.name, ErrorReport()
        course = _Course.of(phase, before)
        with found.noting(), sources_named(phase.config):
            stairs = course.stairs(factor)
        if found.errors:
            errors.add(name, found.errors)
            growth.notes += [f"phase {name} stays as it is: {one.message}" for one in found.errors]
            growth.limit_steps += phase.plan.steps or 0
            growth.words += [] if before is None else _rate_as_before(phase)
            before = None
            continue
        growth.limit_steps += course.limit_steps
        growth.words += course.words(stairs)
        before = course
    if len(growth.notes) == len(resolved.phases):
        report = ErrorReport()
        errors.report_to(report, phases=len(resolved.phases))
        report.close()
    growth.words += _words_of_ends(resolved)
    return growth


@dataclass(frozen=True, kw_only=True, slots=True)
class _Course:
    """How the batch of a phase follows its learning rate.

    Attributes:
        peak: learning rate at which the batch is the one that the phase has without Seesaw.
        warmup_samples: samples of the phase in which the learning rate rises.
    """

    phase: ResolvedPhase
    peak: float
    warmup_samples: int

    @classmethod
    def of(cls, phase: ResolvedPhase, before: "_Course | None") -> "_Course":
        """Returns the course of a phase, which may go on from the one before it."""
        rate, first = phase.rate, phase.plan.first.samples
        warmup = max(0, rate.warmup_samples - rate.first_count) // rate.counts_per_sample
        peak = rate.peak
        if not warmup and rate.first_count:
            peak = rate.at(first, global_batch_size=phase.plan.extents[0].global_batch_size)
        if before is not None and not warmup and _goes_on(phase, before.phase):
            peak = before.peak
        return cls(phase=phase, peak=peak, warmup_samples=warmup)

    @property
    def batch(self) -> int:
        """Samples of a step at the rate `peak`."""
        return self.phase.plan.stages[0].global_batch_size

    def relative_rate(self, samples: int) -> float:
        """Returns the learning rate after some samples of the phase, as a share of `peak`."""
        if samples < self.warmup_samples or not self.peak:
            return 1.0
        consumed = self.phase.plan.first.samples + samples
        return self.phase.rate.at(consumed, global_batch_size=self.batch) / self.peak

    @property
    def limit_steps(self) -> float:
        """Optimiser steps of the phase in the limit of small stairs."""
        assert self.phase.plan.samples is not None
        return steps_in_the_limit(
            self.relative_rate, global_batch_size=self.batch, end_sample=self.phase.plan.samples
        )

    def stairs(self, factor: float) -> RampSchedule:
        """Returns the batches of the phase.

        Raises:
            UsageError: its batch cannot grow.
        """
        _check_phase(self.phase)
        plan, config = self.phase.plan, self.phase.config
        assert plan.samples is not None
        stage, policy = plan.stages[0], NODE_POLICIES[config.rampup.node_policy]
        found = staircase(
            self.relative_rate,
            global_batch_size=self.batch,
            unit=policy.batch_unit(
                stage.num_nodes, micro_batch_size=stage.micro_batch_size, fleet=plan.fleet
            ),
            factor=factor,
            first_sample=self.warmup_samples,
            end_sample=plan.samples,
        )
        if len(found.thresholds) > 1:
            return found
        raise UsageError(
            "--seesaw grows the batch where the learning rate falls,"
            " and this one falls too little for one stair",
            keys=(ScheduleConfig.decay_style, OptimConfig.lr, OptimConfig.min_lr),
            remedy=[
                set_to(ScheduleConfig.decay_style, "cosine"),
                "a smaller optim.min_lr",
                "a smaller --seesaw-factor",
            ],
        )

    def words(self, stairs: RampSchedule) -> list[str]:
        """Returns the overrides that turn the phase into its staircase."""
        thresholds, plan, rate = stairs.distinct_thresholds(), self.phase.plan, self.phase.rate
        # Stairs that go on begin where the rate was divided before.
        lr = self.peak * sqrt(self.batch / thresholds[0].global_batch_size)
        optim = self.phase.config.optim
        values: dict[str, Any] = {
            SCHEDULE_KEY: f"'{schedule_text(thresholds)}'",
            RAMP_KEY: None,
            GLOBAL_KEY: None,
            ACCUMULATE_KEY: None,
            MICRO_KEY: plan.stages[0].micro_batch_size,
            ScheduleConfig.decay_style: "seesaw",
            ScheduleConfig.wsd_decay_samples: None,
            ScheduleConfig.batch_coupling: "none",
        }
        if plan.number == 0 or self.warmup_samples or not self.phase.own.isdisjoint(WARMUP_KEYS):
            values[OptimConfig.warmup_samples] = self.warmup_samples
            values[OptimConfig.warmup_steps] = None
        if plan.name is not None:
            values[OptimConfig.lr] = lr if lr == optim.lr else float(f"{lr:.6g}")
        if plan.number > 0:
            goes_on = self.warmup_samples and (rate.first_count or rate.start)
            values[ScheduleConfig.begin] = CONTINUE if goes_on else RESTART
        return self.phase.overrides(values)


def _goes_on(phase: ResolvedPhase, before: ResolvedPhase) -> bool:
    """Returns whether the batch and the learning rate of a phase go on from the one before it."""
    if sets_batch(phase.own) or phase.plan.sequence_length != before.plan.sequence_length:
        return False
    if not sets_rate(phase.own):
        return not sets_rate(before.own)
    return continues_rate(phase.config, phase.own)


def _rate_as_before(phase: ResolvedPhase) -> list[str]:
    """Returns overrides that keep the learning rate of a phase after one whose batch grows.

    If it goes on from the end of that phase, it would begin too high.
    """
    continues = sets_rate(phase.own) and continues_rate(phase.config, phase.own)
    if not continues or not phase.own.isdisjoint(WARMUP_KEYS):
        return []
    lr = float(f"{phase.rate.peak:.6g}")
    return phase.overrides({OptimConfig.lr: lr, ScheduleConfig.begin: RESTART})


def _words_of_ends(resolved: Resolved) -> Iterator[str]:
    """Yields the overrides that end a run and its phases at the samples where they end now."""
    trainer, plan = resolved.config.trainer, resolved.plan
    for phase in resolved.phases:
        if phase.plan.name is None:
            continue
        key = phase_key(phase.plan.name, UNTIL)
        until = resolved.config.phases[phase.plan.name].get(UNTIL)
        if until is not None and parse_goal(until, key=key).unit == STEPS_UNIT and phase.plan.end:
            yield f"{key}=samples:{phase.plan.end.samples}"
    if plan.end_sample is not None and not (resolved.config.phases and trainer.max_steps is None):
        yield from ("trainer.max_steps=null", "trainer.max_tokens=null")
        yield f"trainer.max_samples={plan.end_sample}"


def _check_run(resolved: Resolved, factor: float) -> None:
    """Checks what is the same for all phases."""
    config, plan = resolved.config, resolved.plan
    if is_rl(config):
        raise UsageError(
            "--seesaw is derived for pretraining, and this is a run of reinforcement learning",
            keys=(GENERATIONS_KEY,),
            remedy=set_to(RAMP_KEY, [8, 8, 1000], note=" without --seesaw, a ramp of prompts"),
        )
    if not 1 < factor < float("inf"):
        raise UsageError(
            f"--seesaw-factor {factor:g} does not let the batch grow", remedy="--seesaw-factor 2"
        )
    couplings = {phase.config.schedule.batch_coupling for phase in resolved.phases}
    tokens = {stage.global_batch_size * plan.of(stage).sequence_length for stage in plan.extents}
    if len(resolved.phases) > 1 and len(tokens) > 1 and couplings != {"none"}:
        raise UsageError(
            f"--seesaw makes the largest batch larger, and {ScheduleConfig.batch_coupling} compares"
            " the batches of phases with it",
            keys=(ScheduleConfig.batch_coupling,),
            remedy=set_to(ScheduleConfig.batch_coupling, "none"),
        )


def _check_phase(phase: ResolvedPhase) -> None:
    """Checks that the batch of a phase is constant and may change."""
    config, this = phase.config, "this run" if phase.plan.name is None else "this phase"
    if len(phase.plan.ramp.thresholds) > 1:
        key = SCHEDULE_KEY if config.model.rampup_batch_size is None else RAMP_KEY
        raise UsageError(
            f"--seesaw derives the batch sizes, but {this} already has a batch schedule",
            keys=(key,),
            remedy=set_to(key, None),
        )
    if config.rampup.nodes is not None:
        raise UsageError(
            f"--seesaw derives the stages, so {NODES_KEY} cannot list their nodes",
            keys=(NODES_KEY,),
            remedy=set_to(NODES_KEY, None),
        )
    if config.schedule.lr_factors is not None:
        raise UsageError(
            f"--seesaw derives the stages, so {ScheduleConfig.lr_factors} cannot list their"
            " factors",
            keys=(ScheduleConfig.lr_factors,),
            remedy=set_to(ScheduleConfig.lr_factors, None),
        )
    if phase.plan.samples is None:
        raise UsageError(
            "--seesaw needs the end of the run",
            keys=(TrainerConfig.max_samples,),
            remedy=set_to(TrainerConfig.max_samples, "10M"),
        )
