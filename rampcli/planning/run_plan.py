"""From a resolved configuration to the plan of its run.

Commands, workers and jobs all plan here.
"""

from dataclasses import dataclass, field
from pathlib import Path

from rampcli.batch.loading import count_readers, samples_to_load
from rampcli.batch.micro_batch import LARGEST, UNLIMITED
from rampcli.batch.nodes import Fleet
from rampcli.batch.pairs import PROMPTS_KEY, PairBatch, PairSettings
from rampcli.batch.phased_plan import PhasedPlan, PhasePlan
from rampcli.batch.pipeline import check_pipeline
from rampcli.batch.plan import GLOBAL_KEY, SAMPLES, ParallelSizes
from rampcli.batch.position import START, Position
from rampcli.batch.quantities import as_written
from rampcli.batch.ramp import StageExtent
from rampcli.batch.run_settings import BatchSettings, FirstEnd, RunLength
from rampcli.batch.throughput import (
    EFFICIENCY_KEY,
    Throughput,
    check_curve,
    is_curve,
    parse_points,
)
from rampcli.batch.training_plan import StagePlan, TrainingPlan, plan_training
from rampcli.config.checks.optim import check_factors
from rampcli.config.checks.splits import check_stages
from rampcli.config.extension_settings import extension_function
from rampcli.config.file_facts import FileFacts
from rampcli.config.layers import sources_named, stack_of
from rampcli.config.rl import is_rl, unit_of
from rampcli.config.schema import Config
from rampcli.errors import Report, UsageError, set_to
from rampcli.estimate.model_size import flops_per_token
from rampcli.extensions import DECAY_STYLE
from rampcli.planning.reading_start import FROM_THE_START, ReadingStart
from rampcli.planning.retuning import Retuning
from rampcli.schedule.couplings import Couplings
from rampcli.schedule.learning_rate import LearningRate
from rampcli.schedule.phase_rate import PhaseRate, Rate


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
    def whole_plan(self) -> TrainingPlan:
        """The plan of the whole run, also if this is one of its phases."""
        return self.whole or self.plan

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
        resolved = Resolved(config=config, plan=plan_config(config, consumed_samples))
        check_stages_ahead(resolved, consumed_samples)
    return resolved


def plan_config(
    config: Config,
    consumed_samples: int,
    *,
    before: Position = START,
    length: FirstEnd | None = None,
) -> TrainingPlan:
    """Plans the run, or one of its phases. A run of reinforcement learning is planned in prompts.

    Args:
        consumed_samples: progress since the start of what is planned.
        before: how far the run has come there, if its ramp counts from the start of the run.
        length: where a phase ends; None for a run, whose settings say so.
    """
    model, trainer, rampup = config.model, config.trainer, config.rampup
    unit, updates = SAMPLES, 1
    micro_batch_size, micro_batch_rule = config.data.micro_batch_size, str(rampup.micro_batch)
    pairs = pair_settings(config)
    if pairs is not None:
        pairs.check()
        if model.global_batch_size is None and model.step_batch_size_schedule is None:
            raise UsageError(
                f"{PROMPTS_KEY} is not set", keys=(GLOBAL_KEY,), remedy=set_to(PROMPTS_KEY, 32)
            )
        unit, updates = pairs.unit, pairs.updates
        micro_batch_size = pairs.prompts_per_micro_batch
        if micro_batch_size is None:
            micro_batch_size, micro_batch_rule = UNLIMITED, LARGEST
    return plan_training(
        batch=BatchSettings(
            global_batch_size=model.global_batch_size,
            micro_batch_size=micro_batch_size,
            accumulate_grad_batches=trainer.accumulate_grad_batches,
            unit=unit,
            updates=updates,
            rampup_batch_size=model.rampup_batch_size,
            step_batch_size_schedule=model.step_batch_size_schedule,
            semantics=rampup.semantics,
            decrease_batch_size_if_needed=rampup.decrease_batch_size_if_needed,
            micro_batch_rule=micro_batch_rule,
            before=before,
        ),
        fleet=Fleet(
            num_nodes=trainer.num_nodes,
            # Ranks that only generate have no part of the batch. They need a run on one node.
            devices=max(1, trainer.devices - config.rl.rollout_ranks),
            parallel=_parallel_sizes(config),
        ),
        node_policy=rampup.node_policy,
        nodes=rampup.nodes,
        sequence_length=config.data.sequence_length,
        length=length or length_of(config),
        throughput=throughput_of(config),
        restart_s=rampup.restart_s,
        restarts_always=rampup.at_boundary == "restart",
        consumed_samples=consumed_samples,
        may_be_over=length is not None,
    )


def length_of(config: Config) -> RunLength:
    """Returns where a run ends according to its settings."""
    trainer = config.trainer
    return RunLength(
        max_steps=trainer.max_steps,
        max_samples=trainer.max_samples,
        max_tokens=trainer.max_tokens,
    )


def pair_settings(config: Config) -> PairSettings | None:
    """Returns how prompts become pairs, or None without reinforcement learning."""
    rl = config.rl
    if rl.generations_per_prompt is None:
        return None
    return PairSettings(
        generations=rl.generations_per_prompt,
        micro_batch_size=rl.micro_batch_size,
        updates=rl.updates_per_rollout,
        splits_groups=rl.split_groups,
    )


def _parallel_sizes(config: Config) -> ParallelSizes:
    parallel = config.parallel
    ranks, parts = parallel.pipeline_parallel_size, parallel.num_pipeline_microbatches
    # `config/checks/rl.py` refuses pipelines, so their micro batches need no further error.
    splits_batch = ranks > 1 and pair_settings(config) is None
    return ParallelSizes(
        tensor=parallel.tensor_parallel_size,
        pipeline=ranks,
        context=parallel.context_parallel_size,
        virtual_pipeline=parallel.virtual_pipeline_parallel_size if splits_batch else 1,
        # Parts that do not fill the pipeline are refused below, by `check_pipeline`.
        pipeline_microbatches=parts if parts and splits_batch and parts % ranks == 0 else 1,
    )


def throughput_of(config: Config) -> Throughput | None:
    """Returns the throughput of one GPU according to the settings, or None if they do not say."""
    throughput, peak = config.throughput, config.trainer.peak_tflops
    sequence_length = config.data.sequence_length
    if config.rampup.efficiency is not None:
        return Throughput(
            points=parse_points(config.rampup.efficiency),
            any_size=is_curve(config.rampup.efficiency),
            basis=f"{EFFICIENCY_KEY} ({stack_of(config).entry(EFFICIENCY_KEY).place})",
        )
    if throughput.samples_per_s_per_gpu is not None:
        return Throughput.constant(
            throughput.samples_per_s_per_gpu * sequence_length,
            has_bubble=False,
            basis=f"{throughput.samples_per_s_per_gpu:g} {unit_of(config)}/s per GPU, as declared",
        )
    if throughput.mfu is None or peak is None or pair_settings(config) is not None:
        return None  # FLOPs say nothing about the time that generating takes.
    flops = flops_per_token(config.model, sequence_length=sequence_length)
    return Throughput.constant(
        throughput.mfu * peak * 1e12 / flops,
        has_bubble=False,
        basis=f"an estimate from FLOPs, at {throughput.mfu:.0%} of {peak:g} TFLOP/s per GPU,"
        " as declared",
    )


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
        check_stages(config, stages)
    with report.noting():
        if config.rampup.efficiency is not None:
            check_curve(config.rampup.efficiency, [stage.micro_batch_size for stage in stages])
    with report.noting():
        for stage in stages:
            try:
                resolved.loading(stage)
            except UsageError as error:
                error.add_context(f"stage {stage.stage}")
                raise
    report.close()
