"""Refuses stages that do not fit their nodes."""

from collections.abc import Sequence
from dataclasses import replace

from rampcli.batch.layout import Layout
from rampcli.batch.node_policies import NODE_POLICIES, POLICY_KEY
from rampcli.batch.pipeline import MICROBATCHES_KEY, PIPELINE_SIZE_KEY
from rampcli.batch.plan import FLEET_KEYS, check_product
from rampcli.batch.quantities import MOST_NAMED, counted, listed
from rampcli.batch.ramp import RampStage
from rampcli.batch.remedies import suggest_changes, suggest_targets
from rampcli.errors import ErrorReport, UsageError, set_to


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
        nodes: nodes of each stage, or None if it does not fit.
        finished: stages at the start of the run that are already trained.
        sizes: batch sizes of the schedule, in ascending order.

    Raises:
        UsageError: everything that does not fit, with the smallest changes that make it fit.
    """
    report = ErrorReport()
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
    rule = layout.micro_batch_rule
    micro = rule.on(sizes[-1], ranks)
    try:
        if micro is not None or not rule.varies:
            check_product(sizes[-1], micro or rule.size, ranks, layout.accumulate_grad_batches)
        rule.divide(sizes[-1], ranks)
    except UsageError as error:
        if layout.accumulate_grad_batches is not None:
            raise
        if len(sizes) > 1:
            changes = [*suggest_targets(sizes, layout), *suggest_changes(sizes, layout)]
            unit = rule.smallest_share * ranks
            error.remedies = tuple(changes or [f"batch sizes that are multiples of {unit}"])
        else:
            for policy in NODE_POLICIES.values():
                if not policy.largest_uses_all_nodes and replace(layout, policy=policy).fits(sizes):
                    error.remedies += (set_to(POLICY_KEY, policy.name),)
        raise


def _refuse(without_nodes: Sequence[tuple[int, int]], sizes: Sequence[int], layout: Layout) -> None:
    """Raises a UsageError about stages without nodes, given the number and the size of each."""
    rule, policy = layout.micro_batch_rule, layout.policy
    keys = [layout.schedule_key(sizes), rule.unit.micro_key, POLICY_KEY, *FLEET_KEYS]
    if rule.varies and rule.smallest_share > 1:
        keys += [MICROBATCHES_KEY, PIPELINE_SIZE_KEY]
    multiple, product = layout.smallest_unit()
    if layout.decreases:
        smaller = [] if rule.varies else [f"a smaller {rule.unit.micro_key}"]
        raise UsageError(
            f"batch size {without_nodes[0][1]} would be decreased to nothing: a step has at least"
            f" {multiple} = {product}",
            keys=keys,
            remedy=[f"batch sizes of at least {multiple}", *smaller],
        )
    is_one = len(without_nodes) == 1
    if len(sizes) == 1:
        subject = f"{rule.unit.global_key}={sizes[0]}"
    elif is_one:
        number, size = without_nodes[0]
        subject = f"batch {size} (stage {number}{layout.of_phase})"
    else:
        shown = [f"{size} (stage {number})" for number, size in without_nodes]
        subject = f"batches {listed(shown, most=MOST_NAMED)}{layout.of_phase}"
    if all(size % multiple for _, size in without_nodes):
        verb = "is not a multiple" if is_one else "are not multiples"
        problem = f"{verb} of {multiple} = {product}"
    else:
        verb = "does" if is_one else "do"
        problem = (
            f"{verb} not divide into {layout.describe_micro_batch()} on any number of nodes that"
            f" {policy.name} may choose, up to {layout.fleet.num_nodes:,} with"
            f" {counted(layout.fleet.devices, 'process')} each"
        )
    raise UsageError(
        f"{subject} {problem}",
        keys=keys,
        remedy=[*suggest_changes(sizes, layout)] or f"batch sizes that are multiples of {multiple}",
    )
