"""The ranks of a stage, and which of its nodes are there. Nodes of an elastic run are lost and come back."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from rampcli.batch.training_plan import StagePlan
from rampcli.checkpoint.manifest import consumed_samples
from rampcli.config.resolve import Resolved
from rampcli.config.splits import check_stages
from rampcli.errors import UsageError
from rampcli.run_directory import RunDirectory


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """Ranks that train together.

    Attributes:
        nodes: the numbers of their nodes.
        ranks: how many there are. The first nodes are full; the last ones may have fewer ranks than devices, or none.
        spare_ranks: how many more these nodes could have, if the batch divided into them.
        reason: a sentence that says how many ranks wait, and why; None if there are no spare ranks.
    """

    nodes: tuple[int, ...]
    ranks: int
    spare_ranks: int = 0
    reason: str | None = None

    @classmethod
    def planned(cls, stage: StagePlan) -> "World":
        """Returns the world that a stage has while no node is lost."""
        return cls(nodes=tuple(range(stage.num_nodes)), ranks=stage.world_size)

    @classmethod
    def largest(cls, resolved: Resolved, nodes: Sequence[int], *, consumed_samples: int) -> "World":
        """Returns the most ranks on some nodes that can train all stages up to the next change of processes; there may be none."""
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
    """Check that some stages can be trained by `world_size` ranks.

    Raises:
        UsageError: they cannot.
    """
    for stage in stages:
        batch = resolved.plan.batch_on(stage, world_size)
        there = replace(
            stage,
            num_nodes=-(-world_size // resolved.config.trainer.devices),
            world_size=world_size,
            data_parallel_size=batch.data_parallel_size,
            accumulate_grad_batches=batch.accumulate_grad_batches,
        )
        check_stages(resolved.config, [there])
        resolved.loading(there)


@dataclass(kw_only=True, slots=True)
class Nodes:
    """The nodes of a stage, some of which may be lost. This host plays all of them.

    Attributes:
        resolved: configuration and plan of the run.
        run: its directory.
        stage: the stage.
        back_at: when each lost node is started again, by the monotonic clock.
    """

    resolved: Resolved
    run: RunDirectory
    stage: StagePlan
    back_at: dict[int, float] = field(default_factory=dict)

    def world(self) -> World | None:
        """Returns the world to start now, or None if too few nodes are there."""
        self.back_at = {node: at for node, at in self.back_at.items() if at > time.monotonic()}
        return self._world_of_others()

    def make_larger(self, world: World) -> bool:
        """Returns whether nodes have come back with which a world would be larger."""
        if all(at > time.monotonic() for at in self.back_at.values()):
            return False
        larger = self.world()
        return larger is not None and larger.ranks > world.ranks

    def lose(self, nodes: Iterable[int], *, wait_s: float) -> str:
        """Take note of lost nodes, which are started again in `wait_s` seconds; returns what the others do, in words."""
        self.back_at |= dict.fromkeys(nodes, time.monotonic() + wait_s)
        others = self.stage.num_nodes - len(self.back_at)
        if self._world_of_others() is not None:
            return f"the {others} left go on without it"
        fewest = (
            f", with launch.min_nodes={self.resolved.config.launch.min_nodes}"
            if others < self._min_nodes
            else ""
        )
        return f"the {others} left wait for it{fewest}"

    @property
    def _min_nodes(self) -> int:
        return min(self.resolved.config.launch.min_nodes, self.stage.num_nodes)

    def _world_of_others(self) -> World | None:
        if not self.back_at:
            return World.planned(self.stage)
        others = [node for node in range(self.stage.num_nodes) if node not in self.back_at]
        if len(others) < self._min_nodes:
            return None
        world = World.largest(self.resolved, others, consumed_samples=consumed_samples(self.run))
        return world if world.ranks else None
