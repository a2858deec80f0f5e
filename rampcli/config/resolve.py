"""The one place where settings are checked against each other: the command line and Python both come through `resolve`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from rampcli.batch.dialects.maxtext import WORDS
from rampcli.batch.loading import LoadedBatch, loading_hosts
from rampcli.batch.nodes import Fleet
from rampcli.batch.pipeline import check_pipeline
from rampcli.batch.plan import ParallelSizes
from rampcli.batch.run_settings import BatchSettings, RampSettings, RunLength
from rampcli.batch.throughput import Throughput, parse_points
from rampcli.batch.training_plan import StagePlan, TrainingPlan, plan_training
from rampcli.config.canonical import Canonical, canonicalize
from rampcli.config.checks import SETTING_CHECKS, check_ranges
from rampcli.config.choices import AtBoundary
from rampcli.config.launch_checks import LAUNCH_CHECKS
from rampcli.config.model_size import flops_per_token
from rampcli.config.origin import DEFAULT, Origin
from rampcli.config.schema import Config
from rampcli.config.settings import leaves, settings
from rampcli.config.splits import SPLIT_CHECKS, check_stages
from rampcli.config.values import build, put
from rampcli.errors import RampcliError, Report, UsageError
from rampcli.schedule.learning_rate import LearningRate


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """A configuration in canonical keys, and the plan that follows from it. Nothing writes into either from here on."""

    config: Config
    plan: TrainingPlan
    notes: tuple[str, ...] = ()

    @property
    def run_dir(self) -> Path:
        """Where the run lives, relative to the working directory unless it was given absolute."""
        return run_dir_of(self.config)

    def learning_rate(self) -> LearningRate:
        """The learning rate over the run."""
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
        )

    def loading(self, stage: StagePlan) -> tuple[LoadedBatch, int] | None:
        """What a step of a stage loads, and how many hosts read it; None where every host reads its own.

        Raises:
            UsageError: it is not whole.
        """
        factor = self.config.data.expansion_factor_real_data
        if factor is None or factor <= 0:
            return None
        expansion = Fraction(str(factor))
        passes = self.plan.loads_per_step(stage)
        loaded = LoadedBatch.of(
            per_device_batch_size=Fraction(stage.global_batch_size, stage.world_size * passes),
            expansion_factor=expansion,
            num_devices=stage.world_size,
            gradient_accumulation_steps=passes,
        )
        return loaded, loading_hosts(stage.num_nodes, expansion)


def run_dir_of(config: Config) -> Path:
    """Where a run lives."""
    return Path(config.run_dir or f"runs/{config.name}")


def resolve(
    config: Config,
    *,
    consumed_samples_in: Callable[[Path], int] = lambda _: 0,
    report: Report | None = None,
) -> Resolved:
    """Check a configuration and plan its run. `config` itself is left as it is.

    Args:
        config: from a recipe or `compose`.
        consumed_samples_in: tells where a run directory stands; stages before that are not checked.
        report: holds errors that were found before; they are raised together with those found here.

    Raises:
        UsageError: all that is wrong, with the keys that it is about and where their values came from.
    """
    report = report or Report()
    origin: Origin = getattr(config, "origin", None) or _by_hand()
    raw = dict(leaves(config))
    given = dict(leaves(build(raw, place=lambda key: origin.place(key, raw[key]), report=report)))
    canon = None
    with _fresh(report, origin.settled(given, {})):
        canon = canonicalize(given, origin)
    untranslated = canon is None and any(given[word] is not None for word in WORDS)
    canon = canon or Canonical(values=given, decided={}, notes=())
    settled = origin.settled(given, canon.decided)
    typed = build(
        canon.values, place=lambda key: settled.place(key, canon.values[key]), report=report
    )
    typed.origin = settled
    known = len(report.errors)
    with _fresh(report, settled):
        check_ranges(typed)
    for error in report.errors[
        known:
    ]:  # what is checked next is worked out with the default in its place
        put(typed, error.keys[0], settings()[error.keys[0]].default)
    for check in (*SETTING_CHECKS, *SPLIT_CHECKS, *LAUNCH_CHECKS):
        with _fresh(report, settled):
            check(typed)
    plan, consumed_samples = None, 0
    if not untranslated:
        with _fresh(report, settled):
            names_wrong = any({"name", "run_dir"} & set(error.keys) for error in report.errors)
            consumed_samples = 0 if names_wrong else consumed_samples_in(run_dir_of(typed))
            plan = _plan(typed, consumed_samples)
    resolved = Resolved(config=typed, plan=plan, notes=canon.notes) if plan else None
    if resolved is not None:
        with _fresh(report, settled):
            _check_stages(resolved, consumed_samples)
    report.close()
    assert resolved is not None
    return resolved


@contextmanager
def sources_named(config: Config) -> Iterator[None]:
    """Let an error about settings say where the values of `config` came from."""
    try:
        yield
    except RampcliError as error:
        origin: Origin = getattr(config, "origin", None) or _by_hand()
        origin.name_sources(error)
        raise


@contextmanager
def _fresh(report: Report, origin: Origin) -> Iterator[None]:
    """Note the errors of a block, with their sources; not those about keys that were found wrong before: they would follow from it."""
    wrong = {key for error in report.errors for key in error.keys}
    found = Report()
    with found.noting():
        yield
    for error in found.errors:
        origin.name_sources(error)
    report.errors += [error for error in found.errors if wrong.isdisjoint(error.keys)]


def _by_hand() -> Origin:
    """The origin of a `Config` that nobody composed: what differs from the defaults was set in Python."""
    composed = dict(leaves(Config()))
    return Origin(composed=composed, sources=dict.fromkeys(composed, DEFAULT))


def _plan(config: Config, consumed_samples: int) -> TrainingPlan:
    model, trainer, parallel, rampup = config.model, config.trainer, config.parallel, config.rampup
    return plan_training(
        batch=BatchSettings(
            global_batch_size=model.global_batch_size,
            micro_batch_size=config.data.micro_batch_size,
            accumulate_grad_batches=trainer.accumulate_grad_batches,
        ),
        ramp=RampSettings(
            rampup_batch_size=model.rampup_batch_size,
            step_batch_size_schedule=model.step_batch_size_schedule,
            semantics=rampup.semantics,
            decrease_batch_size_if_needed=rampup.decrease_batch_size_if_needed,
        ),
        fleet=Fleet(
            num_nodes=trainer.num_nodes,
            devices=trainer.devices,
            parallel=ParallelSizes(
                tensor=parallel.tensor_parallel_size,
                pipeline=parallel.pipeline_parallel_size,
                context=parallel.context_parallel_size,
            ),
        ),
        node_policy=rampup.node_policy,
        sequence_length=config.data.sequence_length,
        length=RunLength(
            max_steps=trainer.max_steps,
            max_samples=trainer.max_samples,
            max_tokens=trainer.max_tokens,
        ),
        throughput=throughput_of(config),
        restart_s=rampup.restart_s,
        restarts_always=rampup.at_boundary is AtBoundary("stop"),
        consumed_samples=consumed_samples,
    )


def throughput_of(config: Config) -> Throughput | None:
    """What one GPU does, by the settings; None where they say nothing of it."""
    sequence_length = config.data.sequence_length
    if config.rampup.efficiency is not None:
        place = config.origin.place("rampup.efficiency", config.rampup.efficiency)
        return Throughput(
            points=parse_points(config.rampup.efficiency), basis=f"rampup.efficiency ({place})"
        )
    samples_per_s, mfu, peak = (
        config.throughput.samples_per_s_per_gpu,
        config.throughput.mfu,
        config.trainer.peak_tflops,
    )
    if samples_per_s is not None:
        return Throughput(
            points=((1, samples_per_s * sequence_length),),
            basis=f"{samples_per_s:g} samples/s per GPU, as declared",
        )
    if mfu is None or peak is None:
        return None
    tokens_per_s = (
        mfu * peak * 1e12 / flops_per_token(config.model, sequence_length=sequence_length)
    )
    return Throughput(
        points=((1, tokens_per_s),),
        basis=f"an estimate from FLOPs, at {mfu:.0%} of {peak:g} TFLOP/s per GPU, as declared",
    )


def _check_stages(resolved: Resolved, consumed_samples: int) -> None:
    """Check the stages that are still to come."""
    report = Report()
    stages = [
        stage
        for stage in resolved.plan.stages
        if stage.samples is None or stage.first_sample + stage.samples > consumed_samples
    ]
    parallel = resolved.config.parallel
    with report.noting():
        check_pipeline(
            num_pipeline_microbatches=parallel.num_pipeline_microbatches,
            stages=parallel.pipeline_parallel_size,
            num_layers=resolved.config.model.num_layers,
        )
    with report.noting():
        check_stages(resolved.config, stages)
    with report.noting():
        for stage in stages:
            try:
                resolved.loading(stage)
            except UsageError as error:
                error.message = f"stage {stage.stage}: {error.message}"
                raise
    report.close()
