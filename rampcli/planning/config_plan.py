"""The plan of a configuration: its settings, as the arithmetic of batches takes them."""

from collections.abc import Sequence

from rampcli.batch.micro_batch import LARGEST, UNLIMITED
from rampcli.batch.nodes import Fleet
from rampcli.batch.pairs import PROMPTS_KEY, PairSettings
from rampcli.batch.plan import GLOBAL_KEY, SAMPLE_UNIT, ParallelSizes
from rampcli.batch.position import RUN_START, Goal, RunPosition
from rampcli.batch.run_settings import BatchSettings
from rampcli.batch.throughput import (
    EFFICIENCY_KEY,
    Throughput,
    is_curve,
    parse_points,
)
from rampcli.batch.training_plan import PhasePlan, plan_phase
from rampcli.config.layers import stack_of
from rampcli.errors import UsageError, set_to
from rampcli.estimate.model_size import flops_per_token
from rampcli.settings.config import Config
from rampcli.settings.rl import unit_of


def plan_config(
    config: Config,
    consumed_samples: int,
    *,
    ends: Sequence[Goal],
    phase: str | None = None,
    before: RunPosition = RUN_START,
    number: int = 0,
    first: RunPosition = RUN_START,
    first_stage: int = 0,
) -> PhasePlan:
    """Plans a phase. A run of reinforcement learning is planned in prompts.

    Args:
        consumed_samples: progress since the start of the phase.
        ends: where the phase ends, as `plan_phase` takes it.
        phase: its name, or None if the run ends it.
        before: how far the run has come there, if its ramp counts from the start of the run.
        number, first, first_stage: as `plan_phase` takes them.
    """
    model, trainer, rampup = config.model, config.trainer, config.rampup
    unit, updates = SAMPLE_UNIT, 1
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
    return plan_phase(
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
            phase=phase,
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
        ends=ends,
        throughput=throughput_of(config),
        restart_s=rampup.restart_s,
        restarts_always=rampup.at_boundary == "restart",
        consumed_samples=consumed_samples,
        may_be_over=phase is not None,
        number=number,
        first=first,
        first_stage=first_stage,
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
    # `settings/rl.py` refuses pipelines, so their micro batches need no further error.
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
        words = stack_of(config).entry(EFFICIENCY_KEY).words_for(EFFICIENCY_KEY)
        places = ", ".join(dict.fromkeys(entry.place for _, entry in words))
        return Throughput(
            points=parse_points(config.rampup.efficiency),
            any_size=is_curve(config.rampup.efficiency),
            basis=f"{EFFICIENCY_KEY} ({places})",
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
