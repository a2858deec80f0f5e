"""`rampcli plan --seesaw`: a batch that grows where the learning rate would fall."""

from rampcli.batch.node_policies import NODE_POLICIES, NODES_KEY
from rampcli.batch.pairs import GENERATIONS_KEY
from rampcli.batch.ramp import RAMP_KEY, RampSchedule
from rampcli.batch.step_schedule import SCHEDULE_KEY, to_text
from rampcli.batch.training_plan import TrainingPlan
from rampcli.config.compose import apply_overrides
from rampcli.config.layers import sources_named
from rampcli.errors import UsageError, set_to, typeable
from rampcli.planning.resolve import resolve
from rampcli.planning.run_plan import Resolved
from rampcli.schedule.seesaw import staircase, steps_in_the_limit
from rampcli.settings.optim import OptimConfig, ScheduleConfig
from rampcli.settings.rl import is_rl
from rampcli.settings.trainer import TrainerConfig


def seesaw(resolved: Resolved, factor: float) -> tuple[Resolved, list[str]]:
    """Returns a plan whose batch grows where the learning rate would fall, and lines about it.

    The arguments and the errors are those of `seesaw_words`.
    """
    words, limit = seesaw_words(resolved, factor)
    stack = apply_overrides(resolved.config, words, place="--seesaw")
    grown = resolve(stack, read_files=resolved.files_of)
    steps = resolved.plan.end_step or 0
    saved = 1 - (grown.plan.end_step or 0) / steps
    lines = [
        f"seesaw (arXiv 2510.14717): {steps:,} steps become {grown.plan.end_step:,},"
        f" {saved:.1%} fewer; {1 - limit / steps:.1%} in the limit of small stairs",
        "train it with:",
        "  " + " ".join(map(typeable, words)),
    ]
    return grown, lines


def seesaw_words(resolved: Resolved, factor: float) -> tuple[list[str], float]:
    """Returns overrides with which the batch grows where the learning rate would fall.

    The second value is the number of optimiser steps in the limit of small stairs.

    Args:
        resolved: a plan with a constant batch.
        factor: growth of the batch from one stair to the next; above 1.

    Raises:
        UsageError: the batch is scheduled already, the run has no end, or the batch does not grow;
            or this is a run of reinforcement learning.
    """
    with sources_named(resolved.config):
        _check_seesaw(resolved, factor)
    plan, config = resolved.plan, resolved.config
    assert plan.end_sample is not None
    assert plan.end_step is not None
    stage, rate, end = plan.stages[0], resolved.phases[0].rate, plan.end_sample
    peak = config.optim.lr or 1.0

    def relative_rate(consumed_samples: int) -> float:
        if rate.is_warming_up(consumed_samples):
            return 1.0
        return rate.at(consumed_samples, global_batch_size=stage.global_batch_size) / peak

    stairs = staircase(
        relative_rate,
        global_batch_size=stage.global_batch_size,
        unit=NODE_POLICIES[config.rampup.node_policy].batch_unit(
            stage.num_nodes, micro_batch_size=stage.micro_batch_size, fleet=plan.of(stage).fleet
        ),
        factor=factor,
        first_sample=rate.schedule.warmup_samples,
        end_sample=end,
    )
    if len(stairs.thresholds) == 1:
        with sources_named(config):
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
    limit = steps_in_the_limit(
        relative_rate, global_batch_size=stage.global_batch_size, end_sample=end
    )
    return _words(stairs, plan, warmup_samples=rate.schedule.warmup_samples), limit


def _words(stairs: RampSchedule, plan: TrainingPlan, *, warmup_samples: int) -> list[str]:
    """Returns the overrides that turn a plan into its staircase."""
    return [
        f"{SCHEDULE_KEY}='{to_text(stairs.thresholds)}'",
        "model.rampup_batch_size=null",
        "model.global_batch_size=null",
        "trainer.accumulate_grad_batches=null",
        f"data.micro_batch_size={plan.stages[0].micro_batch_size}",
        "schedule.decay_style=seesaw",
        "schedule.wsd_decay_samples=null",
        "schedule.batch_coupling=none",
        f"optim.warmup_samples={warmup_samples}",
        "optim.warmup_steps=null",
        "trainer.max_steps=null",
        "trainer.max_tokens=null",
        f"trainer.max_samples={plan.end_sample}",
    ]


def _check_seesaw(resolved: Resolved, factor: float) -> None:
    plan, config = resolved.plan, resolved.config
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
    if len(plan.ramp.thresholds) > 1:
        key = SCHEDULE_KEY if config.model.rampup_batch_size is None else RAMP_KEY
        raise UsageError(
            "--seesaw derives the batch sizes, but this run already has a batch schedule",
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
    if plan.end_sample is None or plan.end_step is None:
        raise UsageError(
            "--seesaw needs the end of the run",
            keys=(TrainerConfig.max_samples,),
            remedy=set_to(TrainerConfig.max_samples, "10M"),
        )
