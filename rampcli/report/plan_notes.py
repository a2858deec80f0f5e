"""What a user may not expect of a plan, and what the plan chose at what cost, as messages."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rampcli.batch.averages import EMA, EMA_KEY, MERGE, MERGE_KEY, merge_start, merged_checkpoints
from rampcli.batch.node_policies import NODE_POLICIES, POLICY_KEY, micro_batches_by_nodes
from rampcli.batch.noise_scale import NOISE_KEY, groups_per_step
from rampcli.batch.notes import accumulation_notes
from rampcli.batch.pairs import PAIRS_KEY
from rampcli.batch.plan import MICRO_KEY
from rampcli.batch.quantities import MOST_NAMED, listed
from rampcli.batch.ramp import StageExtent
from rampcli.batch.throughput import Basis
from rampcli.batch.training_plan import PhasePlan, StagePlan
from rampcli.config.layers import stack_of
from rampcli.config.phases import phases_named
from rampcli.planning.choices import compilation_of, is_chosen_by_plan, ways_to_reduce
from rampcli.planning.run_plan import Resolved, ResolvedPhase
from rampcli.planning.stage_memory import shorten_bytes
from rampcli.report.couplings import coupling_notes
from rampcli.report.memory import memory_notes
from rampcli.report.phases import by_phase
from rampcli.report.tables import duration
from rampcli.settings.data import missing_here
from rampcli.settings.rl import is_rl
from rampcli.settings.trainer import TrainerConfig

ESTIMATED, UNKNOWN = "~", "?"
"""Mark times that were not measured but follow from those of other sizes, and unknown ones."""
NOTED_SHARE = 0.01
"""Share of an average that the first weights may have at the end of a run, without a note."""


def all_notes(resolved: Resolved) -> list[str]:
    """Returns the notes on a plan, on its settings and files, and on what they lead to."""
    return [
        *throughput_notes([resolved]),
        *_unplanned_notes(resolved),
        *by_phase(resolved, _policy_notes),
        *resolved.plan.notes,
        *resolved.notes,
        *by_phase(resolved, _accumulation_notes),
        *by_phase(resolved, _noise_notes),
        *_average_notes(resolved),
        *by_phase(resolved, lambda phase: coupling_notes(phase, resolved.plan_in_units)),
        *by_phase(resolved, reduction_notes),
        *by_phase(resolved, memory_notes),
        *by_phase(resolved, _missing_notes),
    ]


def throughput_notes(plans: Sequence[Resolved]) -> list[str]:
    """Returns notes on sizes whose throughput was not measured."""
    sizes: dict[Basis | None, dict[str, None]] = {}
    for phase in (phase for resolved in plans for phase in resolved.phases):
        for stage in phase.plan.stages:
            size = f"{stage.micro_batch_size} x {stage.accumulate_grad_batches}"
            sizes.setdefault(phase.plan.basis_of(stage), {})[size] = None
    notes = []
    if between := sizes.get(Basis.INTERPOLATED):
        notes.append(
            f"no throughput was measured for {listed([*between], most=MOST_NAMED)} (micro batch x"
            f" accumulation): the hours, marked {ESTIMATED} in tables, are interpolated"
        )
    if beyond := sizes.get(Basis.UNKNOWN):
        notes.append(
            f"no throughput was measured for {listed([*beyond], most=MOST_NAMED)} (micro batch x"
            f" accumulation), which is beyond the measured sizes: the hours, {UNKNOWN} in tables,"
            " are unknown"
        )
    return notes


def left_out_notes(plans: Sequence[Resolved], *, asked: Collection[str] = ()) -> list[str]:
    """Returns notes on what files of other systems say and plans leave out.

    Args:
        plans: several plans, of which each may leave out something else.
        asked: keys that are named if they do not change a run.
    """
    notes = (
        note
        for resolved in plans
        for phase in resolved.phases
        if (effects := stack_of(phase.config).effects) is not None
        for note in (*effects.left_out(), *effects.unchanged_among(asked))
    )
    return [*dict.fromkeys(notes)]


def _unplanned_notes(resolved: Resolved) -> Iterator[str]:
    """Yields notes on phases without a throughput, and on finished stages without nodes."""
    plan = resolved.plan
    names = [phase.name for phase in resolved.phases if phase.plan.clock is None]
    if names and plan.clock is not None:
        yield f"no throughput is known for {phases_named(names)}: the hours are unknown"
    if plan.passed:
        yield (
            f"stages 0 to {len(plan.passed) - 1} are finished and do not fit today's nodes, so only"
            " their batch and samples are planned"
        )


def _policy_notes(phase: ResolvedPhase) -> Iterator[str]:
    """Yields notes on what the node policy cannot weigh, and on the parts of a pipeline."""
    plan, config = phase.plan, phase.config
    policy = NODE_POLICIES[config.rampup.node_policy]
    parts = config.parallel.num_pipeline_microbatches
    if policy.weighs_restarts and plan.clock is not None:
        assumed = [str(stage.stage) for stage in plan.stages if _is_assumed(stage, plan)]
        if assumed:
            yield (
                f"{POLICY_KEY}={policy.name} has no throughput for some of the nodes that"
                f" {_stages_named(assumed)} could have, and assumed that of the nearest known size"
            )
    if parts is not None:
        sizes = sorted({stage.micro_batch_size for stage in plan.stages})
        samples, shares = (
            " to ".join(dict.fromkeys(map(str, (ends[0], ends[-1]))))
            for ends in (sizes, [size // parts for size in sizes])
        )
        yield (
            f"the pipeline splits a rank's micro batch of {samples} samples into {parts} parts of"
            f" {shares}"
        )
    if policy.weighs_restarts and plan.clock is None:
        yield f"no throughput is known, so {POLICY_KEY}={policy.name} does not weigh restarts"


def _missing_notes(phase: ResolvedPhase) -> list[str]:
    return [f"{setting} does not exist on this machine" for setting in missing_here(phase.config)]


def _stages_named(stages: Sequence[str]) -> str:
    return f"{'stages' if len(stages) > 1 else 'stage'} {listed(stages, most=MOST_NAMED)}"


def _is_assumed(stage: StagePlan, plan: PhasePlan) -> bool:
    """Returns whether the throughput of a stage is unknown on some number of nodes."""
    assert plan.clock is not None
    batch, fleet, throughput = stage.global_batch_size, plan.fleet, plan.clock.throughput
    sizes = micro_batches_by_nodes(batch, rule=plan.micro_batch_rule, fleet=fleet)
    return any(
        throughput.basis_of(batch // (micro * fleet.data_parallel_size(n)), micro_batch_size=micro)
        is Basis.UNKNOWN
        for n, micro in sizes.items()
    )


def _noise_notes(phase: ResolvedPhase) -> Iterator[str]:
    """Yields a note on stages whose steps cannot measure the noise scale."""
    if phase.config.noise_scale.every_steps is None:
        return
    pieces = phase.config.parallel.num_pipeline_microbatches or 1
    unmeasured = [
        str(stage.stage)
        for stage in phase.plan.stages
        if groups_per_step(
            data_parallel_size=stage.data_parallel_size,
            accumulate_grad_batches=stage.accumulate_grad_batches,
            micro_batch_size=stage.micro_batch_size,
            pieces=pieces if phase.plan.is_piped else None,
        )
        == 1
    ]
    if unmeasured:
        yield (
            f"{NOISE_KEY} does not measure {_stages_named(unmeasured)}: a step needs two micro"
            " batches, or two samples without a pipeline"
        )


def _average_notes(resolved: Resolved) -> Iterator[str]:
    """Yields notes on averages that still hold the initial weights, or none, when the run ends."""
    settings, tokens = resolved.config.average, resolved.tokens
    rules = {} if tokens is None else resolved.averages()
    if tokens is not None and MERGE in rules and not rules[MERGE].has_begun(tokens):
        yield (
            f"{MERGE_KEY}={settings.merge} begins after the end of the run: nothing is averaged in"
            f" its {tokens:,} tokens"
        )
    yield from _checkpoint_notes(resolved)
    kept = 0.0 if tokens is None or EMA not in rules else 1 - rules[EMA].share(0, tokens)
    if kept >= NOTED_SHARE:
        yield (
            f"{EMA_KEY}={settings.ema} is long for a run of {tokens:,} tokens: at its end,"
            f" {kept:.0%} of the average are still the weights with which it began"
        )


def _checkpoint_notes(resolved: Resolved) -> Iterator[str]:
    """Yields a note if a run saves fewer checkpoints than its mean needs."""
    merge, end_step = resolved.config.average.merge, resolved.plan.end_step
    if merge is None or end_step is None or merge_start(merge) is not None:
        return
    saves = sum(
        _saves_within(stage, one.config.checkpoint.every_steps)
        for one in resolved.phases
        for stage in one.plan.extents
    )
    if saves < (needed := merged_checkpoints(merge)):
        yield (
            f"{MERGE_KEY}={merge} needs {needed} checkpoints, and the run saves at most"
            f" {saves}: a smaller checkpoint.every_steps saves more"
        )


def _saves_within(stage: StageExtent, every_steps: int | None) -> int:
    """Returns how often a stage with an end is saved at most: within it, and at its end."""
    first, steps = stage.first_step, stage.steps or 0
    within = 0 if every_steps is None else (first + steps) // every_steps - first // every_steps
    return within + 1


def _accumulation_notes(phase: ResolvedPhase) -> list[str]:
    if phase.plan.is_piped:  # more micro batches make the bubble smaller, too
        return []
    most = max(phase.passes(stage)[1] for stage in phase.plan.stages)
    return accumulation_notes(most, micro_key=PAIRS_KEY if is_rl(phase.config) else MICRO_KEY)


def reduction_notes(phase: ResolvedPhase) -> list[str]:
    """Returns a note if the plan reduces gradients after each micro batch to save memory."""
    is_each = phase.config.trainer.accumulate_reduce == "each"
    if not is_each or not is_chosen_by_plan(phase.config, TrainerConfig.accumulate_reduce):
        return []
    costs = costs_of(TrainerConfig.accumulate_reduce, phase)
    assert costs is not None  # otherwise, the plan does not choose `each`
    each, last = (_reduction_text(**costs[name]) for name in ("each", "last"))
    return [f"{TrainerConfig.accumulate_reduce}=each, which the plan chose: {each}; last: {last}"]


def compilation_lines(phase: ResolvedPhase) -> list[str]:
    """Returns what compilation takes and saves, if the plan chose it."""
    if not phase.config.trainer.compile or not is_chosen_by_plan(
        phase.config, TrainerConfig.compile
    ):
        return []
    return [
        f"{TrainerConfig.compile}: the plan chose true; {text}"
        for text in costs_text(TrainerConfig.compile, costs_of(TrainerConfig.compile, phase))
    ]


def costs_of(key: str, phase: ResolvedPhase) -> dict[str, Any] | None:
    """Returns the figures from which the plan chooses a setting, or None if there are none.

    For `trainer.accumulate_reduce`, it is `memory_bytes` and `sent_bytes` by value. For
    `trainer.compile`, it is `run_s`, `compile_s` and `saved_s` (see `Compilation`).
    """
    if key == TrainerConfig.accumulate_reduce:
        ways = ways_to_reduce(phase)
        return None if ways is None else {name: asdict(way) for name, way in ways.items()}
    if key == TrainerConfig.compile:
        compilation = compilation_of(phase)
        return None if compilation is None else asdict(compilation)
    return None


def costs_text(key: str, costs: dict[str, Any] | None) -> list[str]:
    """Returns lines that say the costs of `costs_of` to people."""
    if costs is None:
        return []
    if key == TrainerConfig.accumulate_reduce:
        return [f"{value}: {_reduction_text(**way)}" for value, way in costs.items()]
    run_s, saved_s = costs["run_s"], costs["saved_s"]
    saved = (
        "pays in a run without an end"
        if run_s is None
        else f"saves ~{duration(saved_s)} of ~{duration(run_s)}"
    )
    return [f"compiling takes ~{duration(costs['compile_s'])} and {saved}"]


def _reduction_text(*, memory_bytes: int, sent_bytes: int) -> str:
    memory, sent = shorten_bytes(memory_bytes), shorten_bytes(sent_bytes)
    return f"~{memory} per rank, {sent} of gradients sent per step"
