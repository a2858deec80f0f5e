"""Checks the nodes that a user lists for the stages of a run (`rampup.nodes`)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd

from rampcli.batch.division import divisors
from rampcli.batch.layout import Layout
from rampcli.batch.node_policies import DEFAULT_POLICY, NODE_POLICIES, NODES_KEY, POLICY_KEY
from rampcli.batch.plan import FLEET_KEYS, NUM_NODES_KEY
from rampcli.batch.quantities import MOST_NAMED, MOST_STAGES_OFFERED, counted, listed
from rampcli.batch.ramp import RampSchedule
from rampcli.errors import Assignments, ErrorReport, UsageError, set_to, set_together


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedNodes:
    """Nodes that a user lists for the stages of a schedule.

    Attributes:
        nodes: as they are listed; there may be too few or too many.
        layout: what the stages have to fit.
        coming: numbers of the stages that are still to be trained. Only their nodes have to fit.
    """

    nodes: Sequence[int]
    layout: Layout
    schedule: RampSchedule
    coming: range

    def check(self) -> None:
        """Checks that each stage has nodes, and that they divide its batch.

        Raises:
            UsageError: everything that does not fit, with nodes that do.
        """
        report = ErrorReport()
        with report.noting():
            self._check_most()
        with report.noting():
            self._check_numbers()
            self._check_division()
        report.close()

    def _check_most(self) -> None:
        """Checks that no stage has more nodes than the run."""
        coming = [number for number in self.coming if number < len(self.nodes)]
        largest = max(coming, key=lambda number: self.nodes[number], default=None)
        most = self.layout.fleet.num_nodes
        if largest is not None and self.nodes[largest] > most:
            raise UsageError(
                f"{NODES_KEY} has {self.nodes[largest]} nodes for {self._name(largest)}, above"
                f" {NUM_NODES_KEY}={most}",
                keys=(NODES_KEY, NUM_NODES_KEY),
                remedy=set_to(NUM_NODES_KEY, self.nodes[largest]),
            )

    def _check_numbers(self) -> None:
        """Checks that each stage has a number of nodes, of at least one."""
        stages = self.schedule.stages
        if len(self.nodes) != len(stages):
            sizes = [str(stage.global_batch_size) for stage in stages]
            raise UsageError(
                f"{NODES_KEY} lists the nodes of {counted(len(self.nodes), 'stage')}, but the"
                f" schedule of the batch has {counted(len(stages), 'stage')}, of"
                f" {listed(sizes, most=MOST_NAMED)} {self.layout.micro_batch_rule.unit.name}",
                keys=(NODES_KEY, self._schedule_key),
                remedy=[*self._suggest()],
            )
        for number, n in enumerate(self.nodes):
            if n < 1:
                raise UsageError(
                    f"{NODES_KEY} has {n} nodes for {self._name(number)}, which needs at least one",
                    keys=(NODES_KEY,),
                    remedy=[*self._suggest()],
                )

    def _check_division(self) -> None:
        """Checks that the nodes of each coming stage divide its batch."""
        rule, fleet = self.layout.micro_batch_rule, self.layout.fleet
        misfits = [
            number
            for number in self.coming
            if not fleet.divides(
                self.schedule.stages[number].global_batch_size,
                self.nodes[number],
                micro_batch_size=rule.smallest_share,
            )
        ]
        if not misfits:
            return
        problem = self._describe_misfit(misfits[0])
        if others := [str(number) for number in misfits[1:]]:
            subject, its = ("stage", "its") if len(others) == 1 else ("stages", "their")
            verb = "does" if len(others) == 1 else "do"
            shown = f"{listed(others, most=MOST_NAMED)}{self.layout.of_phase}"
            problem += f"; {subject} {shown} {verb} not fit {its} nodes either"
        multiple, _ = self.layout.smallest_unit()
        raise UsageError(
            problem,
            keys=(NODES_KEY, self._schedule_key, rule.unit.micro_key, *FLEET_KEYS),
            remedy=[*self._suggest_micro_batch(), *self._suggest()]
            or f"batch sizes that are multiples of {multiple}",
        )

    def _describe_misfit(self, number: int) -> str:
        n, size = self.nodes[number], self.schedule.stages[number].global_batch_size
        try:
            ranks = self.layout.fleet.data_parallel_size(n)
        except UsageError as error:
            return f"{self._name(number)} on {counted(n, 'node')}: {error.message}"
        unit = self.layout.micro_batch_rule.smallest_share * ranks
        return (
            f"batch {size} ({self._name(number)}) is not a multiple of {unit} ="
            f" {self.layout.describe_micro_batch()} x {counted(ranks, 'data-parallel rank')} on"
            f" {counted(n, 'node')}"
        )

    def _name(self, number: int) -> str:
        return f"stage {number}{self.layout.of_phase}"

    @property
    def _schedule_key(self) -> str:
        return self.layout.schedule_key(self.schedule.scheduled_sizes())

    def _suggest(self) -> Iterator[Assignments]:
        """Yields the nearest list that fits, and a policy with which every batch size fits."""
        stages = range(len(self.schedule.stages))
        near = [self._nearest(number) for number in stages[:MOST_STAGES_OFFERED]]
        if len(stages) <= MOST_STAGES_OFFERED and None not in near:
            yield set_to(NODES_KEY, near)
        for policy in NODE_POLICIES.values():
            if replace(self.layout, policy=policy).fits(self.schedule.scheduled_sizes()):
                chosen = {} if policy.name == DEFAULT_POLICY else {POLICY_KEY: policy.name}
                yield set_together({NODES_KEY: None} | chosen)
                break

    def _nearest(self, number: int) -> int | None:
        """Returns the nodes of a stage that fit it and are nearest to the listed ones, or None.

        A stage that the list lacks has the most nodes that fit.
        """
        fleet, size = self.layout.fleet, self.schedule.stages[number].global_batch_size
        wanted = self.nodes[number] if number < len(self.nodes) else fleet.num_nodes
        if number not in self.coming:
            return max(1, wanted)
        fleet = replace(fleet, num_nodes=max([fleet.num_nodes, *self.nodes]))
        share = self.layout.micro_batch_rule.smallest_share
        fitting = [
            n
            for n in fleet.nodes_that_divide(size, micro_batch_size=share)
            if self._accumulates_as_requested(size, fleet.data_parallel_size(n))
        ]
        return min(fitting, key=lambda n: (abs(n - wanted), -n), default=None)

    def _accumulates_as_requested(self, size: int, ranks: int) -> bool:
        """Returns whether the largest batch has the requested accumulation on some ranks."""
        accumulate = self.layout.accumulate_grad_batches
        if accumulate is None or size < self.schedule.scheduled_sizes()[-1]:
            return True
        micro = self.layout.micro_batch_rule.on(size, ranks)
        return micro is not None and micro * ranks * accumulate == size

    def _suggest_micro_batch(self) -> Iterator[Assignments]:
        """Yields the largest micro batch below the given one that all listed nodes divide into."""
        rule, fleet = self.layout.micro_batch_rule, self.layout.fleet
        if rule.varies or self.layout.accumulate_grad_batches is not None:
            return
        shares = []
        for number in self.coming:
            processes = self.nodes[number] * fleet.devices
            ranks, rest = divmod(processes, fleet.parallel.model_parallel_size)
            size = self.schedule.stages[number].global_batch_size
            if rest or size % (ranks * rule.updates):
                return
            shares.append(size // (ranks * rule.updates))
        yield rule.unit.set_micro_batch(divisors(gcd(*shares), most=rule.size - 1)[-1])
