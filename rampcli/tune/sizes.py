"""The micro batch sizes that a search may try, and the configuration of a trial."""

from dataclasses import dataclass, replace
from pathlib import Path

from rampcli.batch.division import divisors
from rampcli.batch.node_policies import NODES_KEY, POLICY_KEY
from rampcli.batch.plan import ACCUMULATE_KEY, GLOBAL_KEY, MICRO_KEY, NUM_NODES_KEY, BatchPlan
from rampcli.batch.ramp import RAMP_KEY
from rampcli.batch.step_schedule import SCHEDULE_KEY, schedule_text
from rampcli.batch.training_plan import StagePlan, TrainingPlan
from rampcli.config.layers import as_recipe, sources_named, with_values
from rampcli.config.phases import phases_named, sets_batch
from rampcli.config.translate import with_decided_references
from rampcli.errors import UsageError
from rampcli.planning.run_plan import Resolved, run_plan
from rampcli.planning.same_batches import micro_batch_settings
from rampcli.runs.directory import RunDirectory
from rampcli.settings.config import Config
from rampcli.settings.optim import ScheduleConfig
from rampcli.settings.phase_keys import UNTIL, phase_key
from rampcli.settings.trainer import CheckpointConfig, TrainerConfig
from rampcli.settings.watch import NoiseScaleConfig

MOST_SAMPLES = 10_000
"""Largest micro batch that a search tries."""
MOST_MICRO_BATCHES = 8
"""Most micro batches of a timed step, because a step of hundreds would take minutes."""
ENDLESS_STEPS = 10**9
"""Length of a trial's run. The search ends it long before."""
TUNE_PLACE = "rampcli tune"


def run_of_phase(resolved: Resolved, name: str | None) -> Resolved:
    """Returns a phase as a run of its own: its settings, its batches and its length.

    Its run directory is in that of the run. A run without named phases is returned as it is.

    Args:
        name: of the phase. None is the only one.

    Raises:
        UsageError: there is no such phase, or there are several and none is named.
    """
    names = [*resolved.config.phases]
    if name is None and not names:
        return resolved
    reached = {one.plan.name: one for one in resolved.phases if one.plan.name is not None}
    if name is None and len(reached) == 1:
        (name,) = reached
    if name is None or name not in reached:
        choices = [f"--phase {one}" for one in reached]
        message = (
            f"{TUNE_PLACE} measures the steps of one phase, and this run has {phases_named(names)}"
            if name is None
            else f"--phase {name}: this run has {phases_named(names) if names else 'no phases'}"
        )
        with sources_named(resolved.config):
            raise UsageError(
                message,
                keys=tuple(phase_key(one, UNTIL) for one in names),
                remedy=" or ".join(choices) or "the same words without --phase",
            )
    phase = reached[name]
    values = {
        "run_dir": str(RunDirectory(resolved.run_dir).folder_of_phase(name).path),
        TrainerConfig.max_steps: None,
        TrainerConfig.max_tokens: None,
        TrainerConfig.max_samples: phase.plan.samples,
    }
    if not sets_batch(resolved.config.phases[name]):
        # Here, the ramp of the run begins where it is when the phase begins.
        sizes = phase.plan.ramp.thresholds
        values[RAMP_KEY] = None
        values[GLOBAL_KEY] = sizes[0].global_batch_size if len(sizes) == 1 else None
        values[SCHEDULE_KEY] = None if len(sizes) == 1 else schedule_text(sizes)
    alone = run_plan(with_values(as_recipe(phase.config), values, TUNE_PLACE).config())
    return replace(alone, phases=(replace(alone.phases[0], files=phase.files),))


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A micro batch size that the run can have in its largest stage.

    Attributes:
        micro_batch_size: samples per data-parallel rank per forward and backward pass.
        stage: the run's largest stage with this micro batch size.
        timed: micro batches per step, one for each kind of step that is timed, in ascending order.
            If there are two kinds, the time of the run's step follows from both.
    """

    micro_batch_size: int
    stage: StagePlan
    timed: tuple[int, ...]


def candidates(resolved: Resolved) -> list[Candidate]:
    """Returns the micro batch sizes with which the run trains the same batches, in ascending order.

    The accumulation follows from the micro batch size, even if the configuration sets it.
    """
    batches, found = _batches(resolved.plan), []
    for size in divisors(max(batches), most=MOST_SAMPLES):
        settings = micro_batch_settings(resolved.phases[0], size)
        stack = with_values(resolved.config, settings, TUNE_PLACE)
        try:
            changed = run_plan(with_decided_references(stack).config())
        except UsageError:
            continue
        candidate = own_candidate(changed)
        # With `rampup.micro_batch=largest`, the size is a limit, which the stage may not reach.
        if candidate.micro_batch_size == size and _batches(changed.plan) == batches:
            found.append(candidate)
    return found


def _batches(plan: TrainingPlan) -> list[int]:
    return [stage.global_batch_size for stage in plan.stages]


def own_candidate(resolved: Resolved) -> Candidate:
    """Returns the micro batch size that the run has in its largest stage."""
    stage = max(resolved.plan.stages, key=lambda stage: stage.global_batch_size)
    parallel = resolved.config.parallel
    in_parts = parallel.num_pipeline_microbatches is not None
    unit = 1 if in_parts else parallel.pipeline_parallel_size
    timed = timed_micro_batches(stage.accumulate_grad_batches, unit=unit)
    return Candidate(micro_batch_size=stage.micro_batch_size, stage=stage, timed=timed)


def timed_micro_batches(accumulate_grad_batches: int, *, unit: int) -> tuple[int, ...]:
    """Returns the micro batches per step that are timed, in place of many.

    A step takes a fixed time and the same time for each micro batch. So the times of two short
    steps give the time of a long one.

    Args:
        accumulate_grad_batches: micro batches per step of the run.
        unit: micro batches that fill the pipeline, or 1 if a single one does.
    """
    most = max(MOST_MICRO_BATCHES // unit, 2) * unit
    if accumulate_grad_batches <= most:
        return (accumulate_grad_batches,)
    return (unit, most)


def timed_batch_plan(stage: StagePlan, accumulate_grad_batches: int) -> BatchPlan:
    """Returns the batch of a stage's step with this number of micro batches per rank."""
    return BatchPlan.solve(
        global_batch_size=None,
        micro_batch_size=stage.micro_batch_size,
        accumulate_grad_batches=accumulate_grad_batches,
        data_parallel_size=stage.data_parallel_size,
    )


def trial_config(resolved: Resolved, candidate: Candidate, folder: Path) -> Config:
    """Returns the configuration of a trial: one long stage on all ranks of the largest one."""
    stage = candidate.stage
    batch = candidate.micro_batch_size * stage.data_parallel_size * candidate.timed[-1]
    return with_values(
        resolved.config,
        {
            "run_dir": str(folder),
            "resume": "auto",
            MICRO_KEY: candidate.micro_batch_size,
            ACCUMULATE_KEY: None,
            GLOBAL_KEY: batch,
            RAMP_KEY: None,
            SCHEDULE_KEY: None,
            NUM_NODES_KEY: stage.num_nodes,
            POLICY_KEY: "fixed",
            NODES_KEY: None,
            ScheduleConfig.lr_factors: None,
            TrainerConfig.max_steps: ENDLESS_STEPS,
            TrainerConfig.max_samples: None,
            TrainerConfig.max_tokens: None,
            TrainerConfig.val_samples: 0,
            TrainerConfig.on_nonfinite: "skip",
            CheckpointConfig.every_steps: None,
            NoiseScaleConfig.every_steps: None,
        },
        TUNE_PLACE,
    ).config()
