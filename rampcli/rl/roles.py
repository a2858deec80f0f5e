"""Which ranks train and which only generate (`rl.rollout_ranks`)."""

import os
from dataclasses import dataclass

from rampcli.worker.join import rank_variables


@dataclass(frozen=True, kw_only=True, slots=True)
class Roles:
    """The ranks of one node. The first ones train, the others generate.

    Attributes:
        rank: this rank, among all.
        trainers: number of ranks that train.
        generators: number of ranks that only generate.
    """

    rank: int
    trainers: int
    generators: int

    @property
    def generates(self) -> bool:
        """True if this rank only generates."""
        return self.rank >= self.trainers

    @property
    def generator(self) -> int:
        """Number of this rank among those that generate."""
        return self.rank - self.trainers

    def generator_of(self, rollout: int) -> int:
        """Returns the rank that generates a rollout. Rollouts of a step count from 0."""
        return self.trainers + rollout % self.generators


def take_role(generators: int) -> Roles:
    """Returns the roles, and shows this process a world of the ranks that train only.

    Args:
        generators: number of ranks that only generate.
    """
    variables = rank_variables(os.environ)
    trainers = int(variables["WORLD_SIZE"]) - generators
    os.environ.update(variables | {"WORLD_SIZE": str(trainers)})
    return Roles(rank=int(variables["RANK"]), trainers=trainers, generators=generators)
