"""From a resolved configuration to the plan of its run.

Commands, workers and jobs all plan here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rampcli.batch.averages import (
    EMA,
    MERGE,
    AverageRule,
    ExponentialMean,
    UniformMean,
    merge_start,
)
from rampcli.batch.loading import count_readers, samples_to_load
from rampcli.batch.pairs import PairBatch
from rampcli.batch.pipeline import check_pipeline
from rampcli.batch.position import (
    RUN_START,
    SAMPLES_UNIT,
    STEPS_UNIT,
    TOKENS_UNIT,
    Goal,
    RunPosition,
    parse_goal,
)
from rampcli.batch.quantities import MOST_NAMED, as_written, listed
from rampcli.batch.ramp import StageExtent
from rampcli.batch.throughput import check_curve
from rampcli.batch.training_plan import PhasePlan, StagePlan, TrainingPlan
from rampcli.config.file_facts import FileFacts
from rampcli.config.layers import sources_named, stack_of
from rampcli.config.phases import (
    PhaseErrors,
    PhaseSettings,
    sets_batch,
    settings_of_phases,
)
from rampcli.errors import ErrorReport, UsageError, set_to, shown
from rampcli.planning.config_plan import pair_settings, plan_config
from rampcli.planning.phase_rates import rates_of_phases
from rampcli.planning.reading_start import Readings, ReadingStart
from rampcli.planning.retuning import Retuning
from rampcli.planning.stage_checks import check_stages
from rampcli.schedule.learning_rate import Couplings, LearningRate
from rampcli.settings.by_key import changes, leaves
from rampcli.settings.config import Config
from rampcli.settings.data import validation_paths
from rampcli.settings.facts import HELD_OUT, VALIDATION
from rampcli.settings.model import ModelConfig
from rampcli.settings.model_parts import POSITION_EMBEDDINGS
from rampcli.settings.optim import ScheduleConfig, check_factors
from rampcli.settings.phase_keys import UNTIL, phase_key
from rampcli.settings.rl import example_of_end, is_rl
from rampcli.settings.trainer import TrainerConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedPhase:
    """A phase of a run: the settings that apply in it, and what follows from them.

    Attributes:
        config: in canonical keys, complete and checked.
        plan: its stages.
        rate: its learning rate.
        reading: where it begins to read its corpora.
        first_validated_sample: consumed samples where a validation is due before its first step, or
            None if it validates on the samples of the phase before it.
        first_step_of_length: steps before those that have samples of this length without a break.
        own: settings that it sets itself, in canonical keys. A run without named phases has none.
        files: what its files have decided.
    """

    config: Config
    plan: PhasePlan
    rate: LearningRate
    reading: ReadingStart
    first_validated_sample: int | None
    first_step_of_length: int
    own: frozenset[str] = frozenset()
    files: FileFacts = field(default_factory=FileFacts)

    @property
    def name(self) -> str:
        """Name of the phase, or of the run if the phase has none."""
        return self.plan.name or self.config.name

    @property
    def alone(self) -> TrainingPlan:
        """The plan of a run of this phase alone."""
        return TrainingPlan(phases=(self.plan,))

    def overrides(self, values: Mapping[str, Any]) -> list[str]:
        """Returns the overrides that give settings these values in the phase, by key."""
        return [f"{phase_key(self.plan.name, key)}={shown(one)}" for key, one in values.items()]

    def couplings(self) -> Couplings:
        """Returns the other values of the optimiser over the phase."""
        optim, schedule = self.config.optim, self.config.schedule
        return Couplings(
            beta2=optim.beta2,
            weight_decay=optim.weight_decay,
            beta2_coupling=schedule.beta2_coupling,
            weight_decay_coupling=schedule.weight_decay_coupling,
        )

    def pairs(self, stage: StagePlan) -> PairBatch | None:
        """Returns the pairs of a stage's steps, or None without reinforcement learning."""
        settings = pair_settings(self.config)
        return None if settings is None else PairBatch.of(stage, settings)

    def passes(self, stage: StagePlan) -> tuple[int, int]:
        """Returns the micro batch of a stage, and the micro batches per rank and update.

        Micro batches are in samples, or in pairs in reinforcement learning.
        """
        pairs = self.pairs(stage)
        if pairs is None:
            return stage.micro_batch_size, stage.accumulate_grad_batches
        return pairs.micro_batch_size, pairs.accumulation

    def loading(self, stage: StagePlan) -> tuple[int, int] | None:
        """Returns `loading` of a stage."""
        return loading(self.config, self.plan, stage)

    def samples_to_load(self, stage: StagePlan) -> int:
        """Returns the samples that a step of a stage loads, as MaxText counts them.

        Raises:
            UsageError: the samples are not whole.
        """
        return _samples_to_load(self.config, self.plan, stage)


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """A complete, checked configuration and the plan of its run. Neither is changed from here on.

    Attributes:
        config: in canonical keys, checked. Where phases have settings of their own, theirs apply.
        plan: the plans of the phases.
        phases: the phases that the run reaches, in order. A run without named phases is one phase,
            with the settings of the run.
        notes: what a user may not expect of the configuration.
        retunings: batches of the run and its phases beside the recipe's; none if they are the same
            or were not compared.
    """

    config: Config
    plan: TrainingPlan
    phases: tuple[ResolvedPhase, ...]
    notes: tuple[str, ...] = ()
    retunings: tuple[Retuning, ...] = ()

    def trained_by(self, consumed_samples: int) -> ResolvedPhase:
        """Returns the phase whose step ended at `consumed_samples`."""
        return self.at(max(0, consumed_samples - 1))

    def of(self, stage: StageExtent) -> ResolvedPhase:
        """Returns the phase of a stage."""
        return self.at(stage.first_sample)

    def at(self, consumed_samples: int) -> ResolvedPhase:
        """Returns the phase of a step that starts after `consumed_samples`, or the last one."""
        return self.phases[self.plan.phase_at(consumed_samples).number]

    @property
    def run_dir(self) -> Path:
        """The run directory, relative to the working directory unless it was given absolute."""
        return run_dir_of(self.config)

    @property
    def tokens(self) -> int | None:
        """Tokens of the run, or None if it has no end or counts prompts."""
        return None if is_rl(self.config) else self.plan.end_tokens

    @property
    def plan_in_units(self) -> TrainingPlan:
        """The plan. In reinforcement learning, a prompt counts as one token: responses vary."""
        return self.plan.in_samples() if is_rl(self.config) else self.plan

    def averages(self) -> dict[str, AverageRule]:
        """Returns how the averages follow the weights that training computes, by setting."""
        half_life_tokens = self.config.average.ema
        start = merge_start(self.config.average.merge)
        rules: dict[str, AverageRule] = {}
        if half_life_tokens is not None:
            rules[EMA] = ExponentialMean(half_life_tokens=half_life_tokens)
        if start is not None:
            rules[MERGE] = UniformMean(first_token=self.plan.tokens_to(start))
        return rules

    def files_of(self, config: Config) -> FileFacts:
        """Returns what the files of a configuration have decided, which reads the same data."""
        same = (one.files for one in self.phases if one.config.data == config.data)
        return next(same, self.phases[0].files)


def loading(config: Config, plan: PhasePlan, stage: StagePlan) -> tuple[int, int] | None:
    """Returns the samples that a step loads and the number of hosts that read them.

    None means that every host reads its own samples. A factor below 1, with which MaxText loads
    fewer samples, changes nothing here.

    Raises:
        UsageError: the samples are not whole, or the hosts are not.
    """
    factor = config.data.expansion_factor_real_data
    if factor is None or factor <= 0:
        return None
    load = _samples_to_load(config, plan, stage) / as_written(min(factor, 1.0))
    return int(load), count_readers(stage.num_nodes, factor)


def _samples_to_load(config: Config, plan: PhasePlan, stage: StagePlan) -> int:
    return samples_to_load(
        stage.global_batch_size,
        num_devices=stage.world_size,
        passes=plan.loads_per_step(stage),
        expansion_factor=config.data.expansion_factor_real_data,
    )


def _validated_on(config: Config) -> dict[str, Any]:
    """Returns the settings that decide which samples are validated on."""
    what = VALIDATION if validation_paths(config) else VALIDATION | HELD_OUT
    return {key: value for key, value in leaves(config) if changes(key, what)}


def run_dir_of(config: Config) -> Path:
    """Returns the run directory of a configuration."""
    return Path(config.run_dir or f"runs/{config.name}")


def run_plan(config: Config, *, consumed_samples: int = 0) -> Resolved:
    """Plans the run of a complete and checked configuration, one phase after the other.

    Args:
        config: from `resolve` or `snapshot.read`.
        consumed_samples: progress of the run. Stages before it are not checked.

    Raises:
        UsageError: all stages that do not divide, with the places that set their sizes, and ends of
            phases that are out of order.
    """
    with sources_named(config):
        _check_begin(config)
    settings = settings_of_phases(config)
    report, errors = ErrorReport(_misfits(config, settings)), PhaseErrors()
    planned: list[tuple[PhaseSettings, PhasePlan, ReadingStart]] = []
    first, readings = RUN_START, Readings()
    end_of_run = next(iter(_ends_of_run(config).values()), None)
    for number, one in enumerate(settings):
        if _is_reached(end_of_run, first):
            break
        found, after = ErrorReport(), None
        with found.noting(), sources_named(config), sources_named(one.config):
            is_last = number + 1 == len(settings)
            plan_from = partial(
                plan_config,
                one.config,
                before=RUN_START if sets_batch(one.own) else first,
                ends=_ends(one, first, end_of_run, is_last=is_last),
                phase=one.name,
                number=number,
                first=first,
                first_stage=sum(len(plan.extents) for _, plan, _ in planned),
            )
            plan = plan_from(max(0, consumed_samples - first.samples))
            reading = readings.advance(one.config, plan)
            check_stages_ahead(one.config, plan, consumed_samples)
            after = plan.end
            if (is_last or _is_reached(end_of_run, after)) and not plan.stages:
                _check_fits(plan_from)
            planned.append((one, plan, reading))
        errors.add(one.name, found.errors)
        # A guess of the end serves to find the errors of later phases, too.
        first = after or _guess(one, first) or first
    errors.report_to(report, phases=len(settings))
    report.close()
    whole = TrainingPlan(phases=tuple(plan for _, plan, _ in planned))
    with sources_named(config):
        rates = rates_of_phases([one for one, _, _ in planned], whole)
    return Resolved(config=config, plan=whole, phases=_resolved_phases(planned, rates))


def _resolved_phases(
    planned: Sequence[tuple[PhaseSettings, PhasePlan, ReadingStart]], rates: Sequence[LearningRate]
) -> tuple[ResolvedPhase, ...]:
    """Returns the phases of a run from what is known of each of them."""
    phases: list[ResolvedPhase] = []
    for (one, plan, reading), rate in zip(planned, rates, strict=True):
        validates_anew, first_step_of_length = True, plan.first.steps
        if phases:
            before = phases[-1]
            validates_anew = _validated_on(before.config) != _validated_on(one.config)
            if before.plan.sequence_length == plan.sequence_length:
                first_step_of_length = before.first_step_of_length
        phases.append(
            ResolvedPhase(
                config=one.config,
                plan=plan,
                rate=rate,
                reading=reading,
                first_validated_sample=plan.first.samples if validates_anew else None,
                first_step_of_length=first_step_of_length,
                own=one.own,
            )
        )
    return tuple(phases)


def _check_fits(plan_from: Callable[[int], PhasePlan]) -> None:
    """Checks that all stages of a phase fit its nodes, also those that have ended.

    Args:
        plan_from: plans the phase after some of its samples.

    Raises:
        UsageError: a stage does not fit.
    """
    plan_from(0)


def _check_begin(config: Config) -> None:
    """Checks that only phases with names say how their schedule begins.

    Raises:
        UsageError: the run says so, and has none.
    """
    begin = config.schedule.begin
    if begin is not None and not config.phases:
        raise UsageError(
            f"{ScheduleConfig.begin}={begin} says how the schedule of a phase begins, and this run"
            " has no"
            " phases",
            keys=(ScheduleConfig.begin,),
            remedy=set_to(ScheduleConfig.begin, None),
        )


def _misfits(config: Config, settings: Sequence[PhaseSettings]) -> Iterator[UsageError]:
    """Yields why a run cannot have the phases that it has, whatever their plan."""
    ends = _ends_of_run(config)
    if len(ends) > 1:
        shown = " and ".join(f"{key}={end.count}" for key, end in ends.items())
        error = UsageError(
            f"the length of the run is set more than once: {shown}",
            keys=tuple(ends),
            remedy="one of them",
        )
        stack_of(config).name_sources(error)
        yield error
    lengths = {one.name: one.config.data.sequence_length for one in settings}
    embedding = config.model.position_embedding
    if POSITION_EMBEDDINGS[embedding].is_learned and len(set(lengths.values())) > 1:
        each = [f"{name}={length}" for name, length in lengths.items()]
        error = UsageError(
            f"model.position_embedding={embedding} learns a vector for each position, so all phases"
            f" must have samples of one length, not {listed(each, most=MOST_NAMED)}",
            keys=(ModelConfig.position_embedding,),
            remedy=set_to(ModelConfig.position_embedding, "rope"),
        )
        stack_of(config).name_sources(error)
        yield error


def _ends_of_run(config: Config) -> dict[str, Goal]:
    """Returns where the settings of a run end it, apart from its phases, by key. One is allowed."""
    trainer = config.trainer
    counts = {
        TrainerConfig.max_steps: (STEPS_UNIT, trainer.max_steps),
        TrainerConfig.max_samples: (SAMPLES_UNIT, trainer.max_samples),
        TrainerConfig.max_tokens: (TOKENS_UNIT, trainer.max_tokens),
    }
    return {key: Goal(unit, count) for key, (unit, count) in counts.items() if count is not None}


def _is_reached(goal: Goal | None, position: RunPosition | None) -> bool:
    return goal is not None and position is not None and position.count(goal.unit) >= goal.count


def _ends(
    one: PhaseSettings, first: RunPosition, end_of_run: Goal | None, *, is_last: bool
) -> list[Goal]:
    """Returns where a phase ends, counted from its beginning.

    Raises:
        UsageError: it ends before it begins, or has no end although other phases follow.
    """
    key = phase_key(str(one.name), UNTIL)
    goals = [] if end_of_run is None else [end_of_run]
    if one.until is not None:
        prompts = first.samples if is_rl(one.config) else None
        goal = parse_goal(one.until, key=key, prompts=prompts)
        if goal.count <= first.count(goal.unit):
            raise UsageError(
                f"{key}={one.until} is not after the beginning of the phase, at"
                f" {first.count(goal.unit):,} {goal.unit}",
                keys=(key,),
                remedy="a later end, or the phases in another order",
            )
        goals.append(goal)
    elif not is_last:
        raise UsageError(
            f"{key} is not set, and another phase follows",
            keys=(key,),
            remedy=set_to(key, example_of_end(one.config), note=" or another position"),
        )
    return [Goal(goal.unit, goal.count - first.count(goal.unit)) for goal in goals]


def _guess(one: PhaseSettings, first: RunPosition) -> RunPosition | None:
    """Returns about where a phase ends that cannot be planned, or None if that is unknown."""
    try:
        goal = parse_goal(one.until or "", key=UNTIL)
    except UsageError:
        return None
    if goal.unit == TOKENS_UNIT:
        length = one.config.data.sequence_length
        more = max(0, goal.count - first.tokens) // length
        return RunPosition(samples=first.samples + more, steps=first.steps + 1, tokens=goal.count)
    return replace(first, **{goal.unit: max(goal.count, first.count(goal.unit))})


def check_stages_ahead(config: Config, plan: PhasePlan, consumed_samples: int) -> None:
    """Checks the stages of a phase that have not ended.

    Raises:
        UsageError: all that does not fit.
    """
    report = ErrorReport()
    stages = [
        stage
        for stage in plan.stages
        if stage.end_sample is None or stage.end_sample > consumed_samples
    ]
    with report.noting():
        check_pipeline(
            num_pipeline_microbatches=config.parallel.num_pipeline_microbatches,
            pipeline_size=config.parallel.pipeline_parallel_size,
            num_layers=config.model.num_layers,
            num_devices=min((stage.world_size for stage in stages), default=1)
            // (config.parallel.tensor_parallel_size * config.parallel.context_parallel_size),
        )
    report.errors += check_factors(config, plan.ramp)
    with report.noting():
        check_stages(config, stages, plan)
    with report.noting():
        if config.rampup.efficiency is not None:
            check_curve(config.rampup.efficiency, [stage.micro_batch_size for stage in stages])
    with report.noting():
        for stage in stages:
            try:
                loading(config, plan, stage)
            except UsageError as error:
                error.add_context(plan.stage_name(stage))
                raise
    report.close()
