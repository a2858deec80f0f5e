"""The ranks of a stage, and its nodes, which may be lost and return in an elastic run."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from rampcli.batch.training_plan import StagePlan
from rampcli.errors import UsageError
from rampcli.planning.run_plan import Resolved
from rampcli.planning.stage_checks import check_stages
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import consumed_samples


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """Ranks that train together.

    Attributes:
        nodes: numbers of their nodes.
        ranks: number of ranks. They fill the nodes in order, so the last nodes may have fewer
            ranks than devices, or none.
        spare_ranks: further ranks that the nodes have room for, but that the batch does not
            divide into.
        reason: sentence that says how many ranks wait and why; None without spare ranks.
    """

    nodes: tuple[int, ...]
    ranks: int
    spare_ranks: int = 0
    reason: str | None = None

    @classmethod
    def planned(cls, stage: StagePlan) -> "World":
        """Returns the world of a stage when no node is lost."""
        return cls(nodes=tuple(range(stage.num_nodes)), ranks=stage.world_size)

    @classmethod
    def largest(cls, resolved: Resolved, nodes: Sequence[int], *, consumed_samples: int) -> "World":
        """Returns the largest world on some nodes that can train until processes next change.

        Every stage until then must divide over the ranks. If no number of ranks fits, the world
        has 0 ranks.
        """
        stage = resolved.plan.stage_at(consumed_samples)
        stages = next(
            group[group.index(stage) :]
            for group in resolved.plan.stages_by_processes()
            if stage in group
        )
        most, reason = len(nodes) * resolved.config.trainer.devices, None
        for ranks in range(most, 0, -1):
            try:
                _check_world(resolved, stages, ranks)
            except UsageError as error:
                reason = reason or error.message
            else:
                break
        else:
            ranks = 0
        spare = most - ranks
        waiting = (
            f"{spare} of {most} ranks wait{'s' if spare == 1 else ''}, and {ranks} train: {reason}"
        )
        return cls(
            nodes=tuple(nodes), ranks=ranks, spare_ranks=spare, reason=waiting if spare else None
        )


def _check_world(resolved: Resolved, stages: Sequence[StagePlan], world_size: int) -> None:
    """Checks that `world_size` ranks can train some stages."""
    for stage in stages:
        batch = resolved.plan.batch_on(stage, world_size)
        resized = replace(
            stage,
            num_nodes=-(-world_size // resolved.config.trainer.devices),
            world_size=world_size,
            data_parallel_size=batch.data_parallel_size,
            micro_batch_size=batch.micro_batch_size,
            accumulate_grad_batches=batch.accumulate_grad_batches,
        )
        phase = resolved.of(stage)
        check_stages(phase.config, [resized], phase.plan)
        phase.loading(resized)


@dataclass(kw_only=True, slots=True)
class Nodes:
    """The nodes of a stage. In an elastic run, some of them may be lost.

    Attributes:
        back_at: monotonic time at which each lost node returns.
    """

    resolved: Resolved
    run: RunDirectory
    stage: StagePlan
    back_at: dict[int, float] = field(default_factory=dict)

    def world(self) -> World | None:
        """Returns the world to start now, or None if too few nodes are left.

        Lost nodes whose back-off has expired count as returned.
        """
        self.back_at = {node: at for node, at in self.back_at.items() if at > time.monotonic()}
        return self._remaining_world()

    def can_grow(self, world: World) -> bool:
        """Returns whether lost nodes whose back-off has expired would make a world larger."""
        if all(at > time.monotonic() for at in self.back_at.values()):
            return False
        larger = self.world()
        return larger is not None and larger.ranks > world.ranks

    def mark_lost(self, nodes: Iterable[int], *, wait_s: float) -> str:
        """Marks nodes as lost for `wait_s` seconds, and says what the remaining nodes do."""
        self.back_at |= dict.fromkeys(nodes, time.monotonic() + wait_s)
        left = self.stage.num_nodes - len(self.back_at)
        remaining = "the remaining node" if left == 1 else f"the remaining {left} nodes"
        ending = "s" if left == 1 else ""
        if self._remaining_world() is not None:
            return f"{remaining} continue{ending}"
        least = self.resolved.config.launch.min_nodes
        minimum = f" (launch.min_nodes={least})" if left < self._min_nodes else ""
        return f"{remaining} wait{ending}{minimum}" if left else f"no node remains{minimum}"

    @property
    def _min_nodes(self) -> int:
        return min(self.resolved.config.launch.min_nodes, self.stage.num_nodes)

    def _remaining_world(self) -> World | None:
        if not self.back_at:
            return World.planned(self.stage)
        remaining = [node for node in range(self.stage.num_nodes) if node not in self.back_at]
        if len(remaining) < self._min_nodes:
            return None
        world = World.largest(self.resolved, remaining, consumed_samples=consumed_samples(self.run))
        return world if world.ranks else None
