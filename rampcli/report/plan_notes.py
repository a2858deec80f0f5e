"""What a user may not expect of a plan, as messages for tables and JSON."""

from collections.abc import Iterator, Sequence

from rampcli.batch.node_policies import NODE_POLICIES, POLICY_KEY
from rampcli.batch.notes import accumulation_notes
from rampcli.batch.pairs import PAIRS_KEY
from rampcli.batch.plan import MICRO_KEY
from rampcli.batch.quantities import listed
from rampcli.config.corpora import missing_here
from rampcli.config.rl import is_rl
from rampcli.planning.run_plan import Resolved
from rampcli.report.choices import reduction_notes
from rampcli.report.memory import memory_notes

EXTRAPOLATED = "~"
"""Marks times that were not measured, but follow from those of other sizes."""
MOST_SIZES = 6


def all_notes(resolved: Resolved) -> list[str]:
    """Returns the notes on a plan, on its settings and files, and on what they lead to."""
    return [
        *extrapolation_notes([resolved]),
        *_stage_notes(resolved),
        *resolved.plan.notes,
        *resolved.notes,
        *_accumulation_notes(resolved),
        *reduction_notes(resolved),
        *memory_notes(resolved),
        *(f"{setting} does not exist on this machine" for setting in missing_here(resolved.config)),
    ]


def extrapolation_notes(plans: Sequence[Resolved]) -> list[str]:
    """Returns a note if hours are those of sizes beyond the ones whose throughput is known."""
    beyond = {
        (stage.micro_batch_size, stage.accumulate_grad_batches): None
        for resolved in plans
        for stage in resolved.plan.stages
        if resolved.plan.is_extrapolated(stage)
    }
    if not beyond:
        return []
    sizes = listed([f"{micro} x {count}" for micro, count in beyond], most=MOST_SIZES)
    return [
        f"no throughput was measured for {sizes} (micro batch x accumulation): the hours, marked"
        f" {EXTRAPOLATED} in tables, take that of the nearest known size"
    ]


def _stage_notes(resolved: Resolved) -> Iterator[str]:
    """Yields notes on finished stages, parts of a pipeline, and the policy of nodes."""
    plan, config = resolved.plan, resolved.config
    if plan.passed:
        yield (
            f"stages 0 to {len(plan.passed) - 1} are finished and do not fit today's nodes, so only"
            " their batch and samples are planned"
        )
    if config.parallel.num_pipeline_microbatches is not None:
        parts = config.parallel.num_pipeline_microbatches
        sizes = sorted({stage.micro_batch_size for stage in plan.stages})
        samples, shares = (
            " to ".join(dict.fromkeys(map(str, (ends[0], ends[-1]))))
            for ends in (sizes, [size // parts for size in sizes])
        )
        yield (
            f"the pipeline splits a rank's micro batch of {samples} samples into {parts} parts of"
            f" {shares}"
        )
    policy = NODE_POLICIES[config.rampup.node_policy]
    if policy.weighs_restarts and plan.clock is None:
        yield f"no throughput is known, so {POLICY_KEY}={policy.name} does not weigh restarts"


def _accumulation_notes(resolved: Resolved) -> list[str]:
    if resolved.plan.is_piped:  # more micro batches make the bubble smaller, too
        return []
    most = max(resolved.passes(stage)[1] for stage in resolved.plan.stages)
    return accumulation_notes(most, micro_key=PAIRS_KEY if is_rl(resolved.config) else MICRO_KEY)
