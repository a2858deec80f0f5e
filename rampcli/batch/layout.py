"""How batches are laid out over a fleet: micro batch, schedule and node policy."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rampcli.batch.micro_batch import LARGEST, MicroBatchRule
from rampcli.batch.node_policies import (
    NODES_KEY,
    UNTIMED,
    ListedPolicy,
    NodePolicy,
    Workload,
)
from rampcli.batch.nodes import Fleet
from rampcli.batch.plan import GLOBAL_KEY, complete_sizes
from rampcli.batch.quantities import counted
from rampcli.batch.ramp import RAMP_KEY, SEMANTICS, SEMANTICS_KEY, RampSchedule, RampStage
from rampcli.batch.run_settings import DECREASE_KEY, BatchSettings
from rampcli.batch.step_schedule import SCHEDULE_KEY, from_step_schedule
from rampcli.batch.throughput import Clock, Work
from rampcli.errors import ErrorReport, UsageError, set_to


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How batches are laid out over a fleet. Methods take batch sizes in ascending order.

    Attributes:
        ramp: `[start, increment, samples]`, or None without a ramp.
        micro_batch_rule: how large the micro batch of a stage is.
        policy: chooses the nodes of each stage.
        accumulate_grad_batches: requested for the largest batch, or None.
        decreases: batch sizes that do not fit are decreased.
        decreased_nodes: nodes of each scheduled batch size that was decreased.
        phase: name of the phase that is planned, or None.
    """

    ramp: Sequence[int] | None
    micro_batch_rule: MicroBatchRule
    fleet: Fleet
    policy: NodePolicy
    accumulate_grad_batches: int | None = None
    decreases: bool = False
    decreased_nodes: dict[int, int] = field(default_factory=dict)
    phase: str | None = None

    @property
    def of_phase(self) -> str:
        """Follows the number of a stage in errors, because stages count from 0 in each phase."""
        return "" if self.phase is None else f" of phase {self.phase}"

    def nodes(self, sizes: Sequence[int]) -> list[int | None]:
        """Returns the nodes of each batch size, or None if it does not fit."""
        return self.policy.choose(self._workload(sizes))

    def fits(self, sizes: Sequence[int]) -> bool:
        """Returns whether every batch size fits, and the largest with the given accumulation."""
        accumulate, nodes = self.accumulate_grad_batches, self.fleet.num_nodes
        if self.policy.largest_uses_all_nodes and accumulate is not None:
            smallest = self.micro_batch_rule.smallest_share
            if not self.fleet.divides(sizes[-1], nodes, micro_batch_size=smallest):
                return False
            ranks = self.fleet.data_parallel_size(nodes)
            micro = self.micro_batch_rule.on(sizes[-1], ranks)
            if micro is None or sizes[-1] != micro * ranks * accumulate:
                return False
        return self.policy.has_nodes_for_all(self._workload(sizes))

    def decreasing(self, sizes: Sequence[int]) -> tuple["Layout", dict[int, int]]:
        """Decreases batch sizes that fit on no number of nodes, each by as little as possible.

        A size that would be decreased to zero is left as it is and has no nodes.

        Returns:
            The layout that decreases, and the size that runs by scheduled size.
        """
        decreased_nodes: dict[int, int] = {}
        decreased: dict[int, int] = {}
        candidates = self.policy.allowed_nodes(self.fleet)
        for size, planned in zip(sizes, self.nodes(sizes), strict=True):
            nodes = max(candidates, key=lambda n: (self._decrease(size, n), n))
            if planned is None and self._decrease(size, nodes):
                decreased[size] = self._decrease(size, nodes)
                if not self.policy.chooses_by_running_size:
                    decreased_nodes[size] = nodes
        return replace(self, decreases=True, decreased_nodes=decreased_nodes), decreased

    def nodes_of_stages(
        self, stages: Sequence[RampStage], sizes: Sequence[int], clock: Clock
    ) -> list[int | None]:
        """Returns the nodes of each stage, or None if its batch does not fit.

        A policy chooses by the batch size that a stage runs with, or by the one of the schedule.
        They differ where sizes are decreased.

        Args:
            sizes: batch sizes of the schedule.
            clock: duration of stages and restarts.
        """

        def decisive_size(stage: RampStage) -> int:
            if self.policy.chooses_by_running_size:
                return stage.global_batch_size
            return stage.scheduled_batch_size

        works = [
            Work(global_batch_size=decisive_size(stage), samples=stage.samples) for stage in stages
        ]
        chosen = self.policy.choose(self._workload(sizes, works, clock))
        return [
            self.decreased_nodes.get(stage.scheduled_batch_size, nodes)
            for stage, nodes in zip(stages, chosen, strict=True)
        ]

    def smallest_unit(self) -> tuple[int, str]:
        """Returns what every batch on the fewest nodes must be a multiple of, and its factors."""
        nodes = self.policy.allowed_nodes(self.fleet)[0]
        share = self.micro_batch_rule.smallest_share
        unit = self.policy.batch_unit(nodes, micro_batch_size=share, fleet=self.fleet)
        ranks = counted(unit // share, self.policy.rank)
        return unit, f"{self.describe_micro_batch()} x {ranks} on {counted(nodes, 'node')}"

    def schedule_key(self, sizes: Sequence[int]) -> str:
        """Returns the setting that batch sizes come from."""
        if len(sizes) == 1:
            return GLOBAL_KEY
        return RAMP_KEY if self.ramp else SCHEDULE_KEY

    def describe_micro_batch(self) -> str:
        """Describes the number that divides a rank's share of every batch."""
        rule = self.micro_batch_rule
        smallest = rule.smallest_share // rule.updates
        text = f"{counted(smallest, rule.unit.name.removesuffix('s'))} per micro batch"
        if rule.varies:
            text = f"at least {text}"
        return text if rule.updates == 1 else f"{text} x {rule.updates} updates"

    def _workload(
        self, sizes: Sequence[int], works: Sequence[Work] = (), clock: Clock = UNTIMED
    ) -> Workload:
        return Workload(
            works=works or [Work(global_batch_size=size, samples=1) for size in sizes],
            sizes=sizes,
            micro_batch_rule=self.micro_batch_rule,
            fleet=self.fleet,
            clock=clock,
        )

    def _decrease(self, size: int, num_nodes: int) -> int:
        ranks = self.fleet.data_parallel_size(num_nodes)
        return size - size % (self.micro_batch_rule.smallest_share * ranks)


def lay_out(
    batch: BatchSettings,
    *,
    fleet: Fleet,
    policy: NodePolicy,
    sequence_length: int,
) -> tuple[Layout, RampSchedule]:
    """Derives the micro batch and the schedule, with decreased batch sizes if requested.

    Args:
        batch: the batch, and how it changes.
        policy: chooses the nodes of each stage.
        sequence_length: tokens per sample.

    Raises:
        UsageError: the settings contradict each other, or a value is out of range.
    """
    report = ErrorReport()
    schedule = None
    largest = batch.global_batch_size
    if batch.step_batch_size_schedule is not None:
        _check_step_schedule(batch)
        schedule = from_step_schedule(
            batch.step_batch_size_schedule,
            sequence_length=sequence_length,
            before=batch.before,
        )
        _check_last_size(schedule, batch)
        largest = schedule.scheduled_sizes()[-1]
    with report.noting():
        largest, micro_batch_size = complete_sizes(
            global_batch_size=largest,
            micro_batch_size=batch.micro_batch_size,
            accumulate_grad_batches=batch.accumulate_grad_batches,
            data_parallel_size=fleet.data_parallel_size(fleet.num_nodes),
        )
    if schedule is None and largest is not None:
        with report.noting():
            schedule = RampSchedule.from_rampup(
                batch.rampup_batch_size,
                global_batch_size=largest,
                semantics=batch.semantics,
                target_key=batch.unit.global_key,
            ).after(batch.before.samples)
    report.close()
    assert schedule is not None
    rule = MicroBatchRule(
        size=micro_batch_size,
        varies=batch.micro_batch_rule == LARGEST,
        updates=batch.updates,
        unit=batch.unit,
        parallel=fleet.parallel,
    )
    rule.check()
    layout = Layout(
        ramp=batch.rampup_batch_size,
        micro_batch_rule=rule,
        accumulate_grad_batches=batch.accumulate_grad_batches,
        fleet=fleet,
        policy=policy,
        phase=batch.phase,
    )
    if batch.decrease_batch_size_if_needed:
        _check_decrease(batch, policy)
        layout, decreased = layout.decreasing(schedule.scheduled_sizes())
        schedule = schedule.with_decreased(decreased)
    return layout, schedule


def _check_step_schedule(batch: BatchSettings) -> None:
    if batch.rampup_batch_size is not None:
        raise UsageError(
            f"the batch is scheduled twice: {RAMP_KEY} and {SCHEDULE_KEY}",
            keys=(RAMP_KEY, SCHEDULE_KEY),
            remedy="null for one of them",
        )
    if batch.decrease_batch_size_if_needed:
        raise UsageError(
            f"{DECREASE_KEY}=true cannot be combined with {SCHEDULE_KEY}, which states its sizes",
            keys=(DECREASE_KEY, SCHEDULE_KEY),
            remedy=set_to(DECREASE_KEY, False),
        )


def _check_last_size(schedule: RampSchedule, batch: BatchSettings) -> None:
    if batch.global_batch_size not in (None, schedule.target):
        raise UsageError(
            f"{SCHEDULE_KEY} ends at {schedule.target}, but"
            f" {batch.unit.global_key}={batch.global_batch_size}",
            keys=(SCHEDULE_KEY, GLOBAL_KEY),
            remedy=set_to(batch.unit.global_key, schedule.target, None),
        )


def _check_decrease(batch: BatchSettings, policy: NodePolicy) -> None:
    if isinstance(policy, ListedPolicy):
        raise UsageError(
            f"{DECREASE_KEY}=true cannot be combined with {NODES_KEY}, which states the nodes",
            keys=(DECREASE_KEY, NODES_KEY),
            remedy=[set_to(DECREASE_KEY, False), set_to(NODES_KEY, None)],
        )
    if SEMANTICS[batch.semantics].can_decrease:
        return
    others = [name for name, semantics in SEMANTICS.items() if semantics.can_decrease]
    raise UsageError(
        f"{DECREASE_KEY}=true is not supported by {SEMANTICS_KEY}={batch.semantics}",
        keys=(DECREASE_KEY, SEMANTICS_KEY),
        remedy=[set_to(DECREASE_KEY, False), set_to(SEMANTICS_KEY, *others)],
    )
