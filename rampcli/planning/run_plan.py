"""From a resolved configuration to the plan of its run.

Commands, workers and jobs all plan here.
"""

from dataclasses import dataclass, field
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
from rampcli.batch.phased_plan import PhasedPlan, PhasePlan, stage_name
from rampcli.batch.pipeline import check_pipeline
from rampcli.batch.quantities import as_written
from rampcli.batch.ramp import StageExtent
from rampcli.batch.throughput import (
    check_curve,
)
from rampcli.batch.training_plan import StagePlan, TrainingPlan
from rampcli.config.extension_settings import extension_function
from rampcli.config.file_facts import FileFacts
from rampcli.config.layers import sources_named
from rampcli.errors import Report, UsageError, set_to
from rampcli.planning.config_plan import pair_settings, plan_config
from rampcli.planning.reading_start import FROM_THE_START, ReadingStart
from rampcli.planning.retuning import Retuning
from rampcli.planning.stage_checks import check_stages
from rampcli.plugins.extensions import DECAY_STYLE
from rampcli.schedule.couplings import Couplings
from rampcli.schedule.learning_rate import LearningRate
from rampcli.schedule.phase_rate import PhaseRate, Rate
from rampcli.settings.by_key import changes, leaves
from rampcli.settings.config import Config
from rampcli.settings.corpora import validation_paths
from rampcli.settings.facts import HELD_OUT, VALIDATION
from rampcli.settings.optim import check_factors
from rampcli.settings.rl import is_rl

BEGIN_KEY = "schedule.begin"


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """A complete, checked configuration and the plan of its run. Neither is changed from here on.

    Attributes:
        config: in canonical keys, checked.
        notes: what a user may not expect of the configuration.
        files: what its files have decided.
        retuning: how the batch differs from the recipe's; None if it does not or was not compared.
        phases: the phases of the run, each as a run of its own; empty for a run without phases.
            Then `config` has the settings of the run, and `phases` those that apply.
        phase: the phase of the run that this is.
        earlier: the phases before this one.
        whole: the plan of the run that this is a phase of; None if this is the run.
        phase_rate: learning rate of this phase.
        reading: where this phase begins to read its corpora.
    """

    config: Config
    plan: TrainingPlan
    notes: tuple[str, ...] = ()
    files: FileFacts = field(default_factory=FileFacts)
    retuning: Retuning | None = None
    phases: "tuple[Resolved, ...]" = ()
    phase: PhasePlan | None = None
    earlier: "tuple[Resolved, ...]" = ()
    whole: PhasedPlan | None = None
    phase_rate: PhaseRate | None = None
    reading: ReadingStart = FROM_THE_START

    @property
    def first_validated_sample(self) -> int | None:
        """Consumed samples where a validation is due before the first step.

        None for a phase that validates on the samples of the phase before it.
        """
        if self.phase is None or not self.earlier:
            return 0
        before, now = (_validated_on(one.config) for one in (self.earlier[-1], self))
        return None if before == now else self.phase.first.samples

    @property
    def first_step_of_length(self) -> int:
        """Steps before those that have samples of this length without a break."""
        first = 0 if self.phase is None else self.phase.first.steps
        for before in reversed(self.earlier):
            if before.plan.sequence_length != self.plan.sequence_length or before.phase is None:
                break
            first = before.phase.first.steps
        return first

    @property
    def whole_plan(self) -> TrainingPlan:
        """The plan of the whole run, also if this is one of its phases."""
        return self.whole or self.plan

    @property
    def parts(self) -> "tuple[Resolved, ...]":
        """The phases of the run, or the run itself if it has no phases."""
        return self.phases or (self,)

    def trained_by(self, consumed_samples: int) -> "Resolved":
        """Returns the phase whose step ended at `consumed_samples`; the run without phases.

        Of a phase, this is the phase itself or an earlier one.
        """
        phases = self.phases or (*self.earlier, self)
        begun = [
            one
            for one in phases[1:]
            if one.phase is not None and one.phase.first.samples < consumed_samples
        ]
        return [phases[0], *begun][-1]

    @property
    def name(self) -> str:
        """Name of the phase, or of the run."""
        return self.config.name if self.phase is None else self.phase.name

    def of(self, stage: StageExtent) -> "Resolved":
        """Returns the phase of a stage, or the run itself if it has no phases."""
        return self.at(stage.first_sample)

    def at(self, consumed_samples: int) -> "Resolved":
        """Returns the phase after `consumed_samples`, or the run itself if it has no phases."""
        if not isinstance(self.plan, PhasedPlan):
            return self
        return self.phases[self.plan.phase_at(consumed_samples).number]

    @property
    def run_dir(self) -> Path:
        """The run directory, relative to the working directory unless it was given absolute."""
        return run_dir_of(self.config)

    @property
    def tokens(self) -> int | None:
        """Tokens of the run, or None if it has no end or counts prompts."""
        return None if is_rl(self.config) else self.plan.end_tokens

    def averages(self) -> dict[str, AverageRule]:
        """Returns how the averages follow the weights that training computes, by setting."""
        half_life_tokens = self.config.average.ema
        start = merge_start(self.config.average.merge)
        rules: dict[str, AverageRule] = {}
        if half_life_tokens is not None:
            rules[EMA] = ExponentialMean(half_life_tokens=half_life_tokens)
        if start is not None:
            rules[MERGE] = UniformMean(first_token=self.whole_plan.tokens_to(start))
        return rules

    def rate(self) -> Rate:
        """Returns the learning rate over the run, or over this phase of it."""
        return self.phase_rate or self.learning_rate()

    def learning_rate(self) -> LearningRate:
        """Returns the learning rate over a run without phases."""
        optim, schedule = self.config.optim, self.config.schedule
        return LearningRate.over(
            self.plan,
            decay_style=schedule.decay_style,
            peak=optim.lr,
            floor=optim.min_lr,
            warmup_samples=optim.warmup_samples,
            warmup_steps=optim.warmup_steps,
            wsd_decay_samples=schedule.wsd_decay_samples,
            batch_coupling=schedule.batch_coupling,
            lr_factors=schedule.lr_factors,
            own_decay=extension_function(DECAY_STYLE, schedule.decay_style, schedule),
        )

    def couplings(self) -> Couplings:
        """Returns the other values of the optimiser over the run."""
        optim, schedule = self.config.optim, self.config.schedule
        return Couplings(
            beta2=optim.beta2,
            weight_decay=optim.weight_decay,
            beta2_coupling=schedule.beta2_coupling,
            weight_decay_coupling=schedule.weight_decay_coupling,
        )

    def files_of(self, config: Config) -> FileFacts:
        """Returns what the files of a configuration have decided, which reads the same data."""
        same = (one.files for one in self.phases if one.config.data == config.data)
        return next(same, self.files)

    def pairs(self, stage: StagePlan) -> PairBatch | None:
        """Returns the pairs of a stage's steps, or None without reinforcement learning."""
        settings = pair_settings(self.of(stage).config)
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
        """Returns the samples that a step loads and the number of hosts that read them.

        None means that every host reads its own samples. A factor below 1, with which MaxText loads
        fewer samples, changes nothing here.

        Raises:
            UsageError: the samples are not whole, or the hosts are not.
        """
        factor = self.of(stage).config.data.expansion_factor_real_data
        if factor is None or factor <= 0:
            return None
        load = self.samples_to_load(stage) / as_written(min(factor, 1.0))
        return int(load), count_readers(stage.num_nodes, factor)

    def samples_to_load(self, stage: StagePlan) -> int:
        """Returns the samples that a step of a stage loads, as MaxText counts them.

        Raises:
            UsageError: the samples are not whole.
        """
        return samples_to_load(
            stage.global_batch_size,
            num_devices=stage.world_size,
            passes=self.plan.loads_per_step(stage),
            expansion_factor=self.of(stage).config.data.expansion_factor_real_data,
        )


def _validated_on(config: Config) -> dict[str, Any]:
    """Returns the settings that decide which samples are validated on."""
    what = VALIDATION if validation_paths(config) else VALIDATION | HELD_OUT
    return {key: value for key, value in leaves(config) if changes(key, what)}


def run_dir_of(config: Config) -> Path:
    """Returns the run directory of a configuration."""
    return Path(config.run_dir or f"runs/{config.name}")


def run_plan(config: Config, *, consumed_samples: int = 0) -> Resolved:
    """Plans the run of a complete and checked configuration.

    Args:
        config: from `resolve` or `snapshot.read`.
        consumed_samples: progress of the run. Stages before it are not checked.

    Raises:
        UsageError: all stages that do not divide, with the places that set their sizes.
    """
    if config.phases:
        from rampcli.planning.phases import plan_phases

        return plan_phases(config, consumed_samples=consumed_samples)
    with sources_named(config):
        if config.schedule.begin is not None:
            raise UsageError(
                f"{BEGIN_KEY}={config.schedule.begin} says how the schedule of a phase begins, and"
                " this run has no phases",
                keys=(BEGIN_KEY,),
                remedy=set_to(BEGIN_KEY, None),
            )
        resolved = Resolved(config=config, plan=plan_config(config, consumed_samples))
        check_stages_ahead(resolved, consumed_samples)
    return resolved


def check_stages_ahead(resolved: Resolved, consumed_samples: int) -> None:
    """Checks the stages of a run without phases, or of a phase, that have not ended.

    Raises:
        UsageError: all that does not fit.
    """
    config, report = resolved.config, Report()
    stages = [
        stage
        for stage in resolved.plan.stages
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
    report.errors += check_factors(config, resolved.plan.ramp)
    with report.noting():
        check_stages(config, stages, phase=resolved.phase)
    with report.noting():
        if config.rampup.efficiency is not None:
            check_curve(config.rampup.efficiency, [stage.micro_batch_size for stage in stages])
    with report.noting():
        for stage in stages:
            try:
                resolved.loading(stage)
            except UsageError as error:
                error.add_context(stage_name(stage, resolved.phase))
                raise
    report.close()
