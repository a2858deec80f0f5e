"""Notes on a run: on the settings and the plan of its phases, and on what they lead to."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise

from rampcli.batch.node_policies import POLICY_KEY, BestPolicy, NemoPolicy
from rampcli.config.layers import with_values
from rampcli.config.phases import lines_by_phase, phases_named, sets_rate
from rampcli.errors import UsageError, set_to, shown
from rampcli.estimate.memory import micro_batch_part
from rampcli.models.parts import SMALLEST_FLEX_HEAD, mask_bytes
from rampcli.planning.choices import is_on_gpus
from rampcli.planning.corpus_passes import pass_notes
from rampcli.planning.phase_rates import CONTINUE
from rampcli.planning.run_plan import Resolved, ResolvedPhase, run_plan
from rampcli.planning.stage_memory import shorten_bytes
from rampcli.settings.architectures import export_notes
from rampcli.settings.config import Config
from rampcli.settings.optim import OptimConfig, ScheduleConfig
from rampcli.settings.phase_keys import phase_key
from rampcli.settings.rl import is_rl, unit_of

NEMO, BEST = NemoPolicy.name, BestPolicy.name
MUCH = 0.1
"""Share of a run's time above which a node policy that saves it is named."""
TINY = 1e-12
JUMP = 1.5
"""Factor between the learning rates on both sides of a boundary from which on a note is due."""


def run_notes(resolved: Resolved, completed: Mapping[str | None, Iterable[str]]) -> Iterator[str]:
    """Yields notes on a run. Those on some of its phases name them.

    Args:
        completed: notes on the settings of each phase, by name, before it was planned.
    """

    def by_phase(notes_of: Callable[[ResolvedPhase], Iterable[str]]) -> Iterator[str]:
        notes = ((phase.name, note) for phase in resolved.phases for note in notes_of(phase))
        return lines_by_phase(notes, phases=len(resolved.phases))

    yield from by_phase(lambda phase: completed[phase.plan.name])
    yield from by_phase(lambda phase: _rl_notes(phase.config))
    yield from by_phase(lambda phase: export_notes(phase.config))
    if unreached := [*resolved.config.phases][len(resolved.phases) :]:
        yield f"the run ends before {phases_named(unreached)}"
    yield from _warmup_notes(resolved)
    yield from _jump_notes(resolved)
    yield from _profile_notes(resolved)
    yield from _last_step_notes(resolved)
    yield from by_phase(_precision_notes)
    yield from by_phase(_mask_notes)
    yield from _policy_notes(resolved)
    yield from pass_notes(resolved)


def _jump_notes(resolved: Resolved) -> Iterator[str]:
    """Yields a note for each phase that returns to the learning rate of the run with a jump."""
    for before, after in pairwise(resolved.phases):
        if before.plan.end is None or sets_rate(after.own):
            continue
        last, first = (_uncoupled(one, before.plan.end.samples) for one in (before, after))
        if not 1 / JUMP <= (first + TINY) / (last + TINY) <= JUMP:
            word = set_to(phase_key(after.name, ScheduleConfig.begin), CONTINUE)
            yield (
                f"phase {after.name} sets no learning rate, so that of the run applies again: it"
                f" goes from {last:.3g} to {first:.3g}; {word} goes on from {last:.3g}"
            )


def _warmup_notes(resolved: Resolved) -> Iterator[str]:
    """Yields a note for each schedule that ends within its warm-up, in its last phase."""
    last_phases = {one.name if sets_rate(one.own) else "": one for one in resolved.phases}
    for own, last in last_phases.items():
        plan, rate, optim = last.plan, last.rate, last.config.optim
        if plan.end is None or not rate.is_warming_up(plan.end.samples):
            continue
        who = "the run" if plan.name is None else f"phase {plan.name}"
        whose = "its" if own or plan.name is None else "the run's"
        key = OptimConfig.warmup_samples if optim.warmup_steps is None else OptimConfig.warmup_steps
        yield (
            f"{who} ends after {plan.samples if own else plan.end.samples:,}"
            f" {unit_of(last.config)}, within {whose} warm-up of"
            f" {rate.warmup_samples // rate.counts_per_sample:,} ({key}): the learning rate does"
            f" not reach {OptimConfig.lr}={rate.peak:g}"
        )


def _uncoupled(phase: ResolvedPhase, consumed_samples: int) -> float:
    """Returns the learning rate of a phase at its boundary, before the batch scales it."""
    stages = phase.plan.extents
    at = 0 if stages[0].first_sample == consumed_samples else -1
    size = stages[at].global_batch_size
    return phase.rate.uncoupled_at(consumed_samples, global_batch_size=size)


def _policy_notes(resolved: Resolved) -> list[str]:
    """Returns a note if the policy `best` would save much of the time that `nemo` takes."""
    config, seconds = resolved.config, resolved.plan.run_s()
    is_nemo = config.rampup.node_policy == NEMO and config.rampup.nodes is None
    if not is_nemo or seconds is None or len(resolved.plan.stages) < 2:
        return []
    quicker = with_values(config, {POLICY_KEY: BEST}, POLICY_KEY).config()
    try:
        best_s = run_plan(quicker).plan.run_s()
    except UsageError:
        return []
    if best_s is None or best_s > (1 - MUCH) * seconds:
        return []
    return [
        f"{POLICY_KEY}={BEST} would take {best_s / 3600:.3g} hours instead of {seconds / 3600:.3g}:"
        " it gives small batches more nodes"
    ]


def _last_step_notes(resolved: Resolved) -> list[str]:
    """Returns a note if the last step, or every step, has a learning rate of 0."""
    if all(phase.config.optim.lr == 0 for phase in resolved.phases):
        return ["optim.lr=0: no step changes a weight"]
    plan, end = resolved.plan, resolved.at(resolved.plan.end_sample or 0)
    optim = end.config.optim
    if plan.end_sample is None:
        return []
    batch = plan.stages[-1].global_batch_size
    last = end.rate.at(plan.end_sample, global_batch_size=batch)
    if last > 1e-9 * optim.lr:  # the end of a cosine is rounded
        return []
    note, key = "the last step has a learning rate of 0 and changes nothing", OptimConfig.min_lr
    if optim.lr == 0:
        return [note]
    if key in end.own:
        key = phase_key(end.name, key)
    return [f"{note}; {key}={optim.lr / 100:g} keeps it above 0"]


def _precision_notes(phase: ResolvedPhase) -> list[str]:
    """Returns a note if GPUs are to compute in fp32 without their tensor cores."""
    trainer = phase.config.trainer
    is_slow = (trainer.precision, trainer.matmul_precision) == ("fp32", "highest")
    if not is_slow or not is_on_gpus(trainer):
        return []
    return [
        "trainer.precision=fp32 leaves the tensor cores of GPUs idle; trainer.precision=bf16 is"
        " several times as fast, and so is fp32 with trainer.matmul_precision=high"
    ]


def _mask_notes(phase: ResolvedPhase) -> list[str]:
    """Returns a note if attention on a GPU needs a mask with a number for each pair of tokens."""
    model = phase.config.model
    size_bytes = mask_bytes(model, micro_batch_part(phase.config, samples=1))
    if not size_bytes:
        return []
    return [
        f"heads of {model.head_width} numbers are too small for flex attention, which needs"
        f" {SMALLEST_FLEX_HEAD}: the mask of a sample takes {shorten_bytes(size_bytes)} on a GPU"
    ]


def _profile_notes(resolved: Resolved) -> list[str]:
    """Returns a note if the run ends before the steps that are to be profiled."""
    window, steps = resolved.config.profile.steps, resolved.plan.end_step
    if window is None or steps is None or window[0] <= steps:
        return []
    return [f"the run ends after {steps:,} steps, before profile.steps={shown(window)}"]


def _rl_notes(config: Config) -> tuple[str, ...]:
    """Returns what a user may not expect of reinforcement learning."""
    if not is_rl(config) or config.model.init_from is not None:
        return ()
    return ("training starts from random weights: model.init_from=RUN_DIR starts from a run",)
