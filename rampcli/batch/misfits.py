"""Refuses stages that do not fit their nodes."""

from collections.abc import Sequence
from dataclasses import replace

from rampcli.batch.layout import Layout
from rampcli.batch.node_policies import NODE_POLICIES, POLICY_KEY, count_nodes
from rampcli.batch.pipeline import MICROBATCHES_KEY, PIPELINE_SIZE_KEY
from rampcli.batch.plan import FLEET_KEYS, GLOBAL_KEY, MICRO_KEY, check_product
from rampcli.batch.ramp import RAMP_KEY, RampStage
from rampcli.batch.remedies import suggest_changes, suggest_targets
from rampcli.batch.step_schedule import SCHEDULE_KEY
from rampcli.errors import Report, UsageError, set_to

MOST_SHOWN = 5


def check_fit(
    layout: Layout,
    stages: Sequence[RampStage],
    nodes: Sequence[int | None],
    *,
    finished: int,
    sizes: Sequence[int],
) -> None:
    """Checks that the largest batch runs as requested and that every coming stage has nodes.

    Args:
        layout: what the stages have to fit.
        stages: all stages of the run.
        nodes: nodes of each stage, or None if it does not fit.
        finished: stages at the start of the run that are already trained.
        sizes: batch sizes of the schedule, in ascending order.

    Raises:
        UsageError: everything that does not fit, with the smallest changes that make it fit.
    """
    report = Report()
    largest_runs = sizes[-1] in {stage.scheduled_batch_size for stage in stages[finished:]}
    # A step schedule has no target of its own: its largest size is refused as a stage.
    has_target = layout.ramp is not None or len(sizes) == 1
    uses_all_nodes = layout.policy.largest_uses_all_nodes and not layout.decreases
    if largest_runs and has_target and uses_all_nodes:
        with report.noting():
            _check_largest(layout, sizes)
    refused = {sizes[-1]} if report.errors else set()
    without_nodes = [
        (number, stage.scheduled_batch_size)
        for number, stage in enumerate(stages)
        if number >= finished
        and nodes[number] is None
        and stage.scheduled_batch_size not in refused
    ]
    if without_nodes:
        with report.noting():
            _refuse(without_nodes, sizes, layout)
    report.close()


def _check_largest(layout: Layout, sizes: Sequence[int]) -> None:
    """Checks the largest batch on all the nodes, with the requested accumulation."""
    ranks = layout.fleet.data_parallel_size(layout.fleet.num_nodes)
    rule, parallel = layout.micro_batch, layout.fleet.parallel
    micro = rule.on(sizes[-1], ranks, parallel)
    try:
        if micro is not None or not rule.varies:
            check_product(sizes[-1], micro or rule.size, ranks, layout.accumulate_grad_batches)
        rule.divide(sizes[-1], ranks, parallel)
    except UsageError as error:
        if layout.accumulate_grad_batches is not None:
            raise
        if len(sizes) > 1:
            changes = [*suggest_targets(layout), *suggest_changes(sizes, layout)]
            unit = rule.smallest(parallel) * ranks
            error.remedies = tuple(changes or [f"batch sizes that are multiples of {unit}"])
        else:
            for policy in NODE_POLICIES.values():
                if not policy.largest_uses_all_nodes and replace(layout, policy=policy).fits(sizes):
                    error.remedies += (set_to(POLICY_KEY, policy.name),)
        raise


def _refuse(without_nodes: Sequence[tuple[int, int]], sizes: Sequence[int], layout: Layout) -> None:
    """Raises a UsageError about stages without nodes.

    Args:
        without_nodes: number and scheduled batch size of each stage.
        sizes: batch sizes of the schedule, in ascending order.
        layout: what they do not fit.
    """
    rule = layout.micro_batch
    keys = [_schedule_key(sizes, layout), MICRO_KEY, POLICY_KEY, *FLEET_KEYS]
    if rule.varies and rule.smallest(layout.fleet.parallel) > 1:
        keys += [MICROBATCHES_KEY, PIPELINE_SIZE_KEY]
    if layout.decreases:
        nodes, unit = count_nodes(layout.fewest_nodes()), layout.smallest_unit()
        raise UsageError(
            f"batch size {without_nodes[0][1]} would be decreased to nothing:"
            f" {rule.describe(layout.fleet.parallel)} on {nodes} takes at least {unit} samples",
            keys=tuple(keys),
            remedy=f"batch sizes of at least {unit}"
            + ("" if rule.varies else f", or a smaller {MICRO_KEY}"),
        )
    misfit = layout.policy.describe_misfit(rule, layout.fleet)
    shown = [f"{number} (batch size {size})" for number, size in without_nodes[:MOST_SHOWN]]
    if len(without_nodes) > MOST_SHOWN:
        shown.append("...")
    subject, verb = ("stages", "do") if len(without_nodes) > 1 else ("stage", "does")
    raise UsageError(
        f"{subject} {', '.join(shown)} of the ramp {verb} not divide {misfit}"
        if len(sizes) > 1
        else f"{GLOBAL_KEY}={sizes[0]} does not divide {misfit}",
        keys=tuple(keys),
        remedy=[*suggest_changes(sizes, layout)]
        or f"batch sizes that are multiples of {layout.smallest_unit()}",
    )


def _schedule_key(sizes: Sequence[int], layout: Layout) -> str:
    if len(sizes) == 1:
        return GLOBAL_KEY
    return RAMP_KEY if layout.ramp else SCHEDULE_KEY
