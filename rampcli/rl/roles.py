"""Which ranks train and which only generate (`rl.rollout_ranks`)."""

import os
from dataclasses import dataclass

from rampcli.errors import UsageError
from rampcli.settings.rl import ROLLOUT_KEY
from rampcli.worker.starters import are_on_one_host, rank_variables


@dataclass(frozen=True, kw_only=True, slots=True)
class Roles:
    """The ranks of one node. The first ones train, the others generate."""

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
    """Returns the roles of the ranks.

    If some ranks only generate, this sets WORLD_SIZE and LOCAL_WORLD_SIZE to the number of those
    that train.

    Args:
        generators: number of ranks that only generate. If there are any, all ranks are on one host.

    Raises:
        UsageError: no rank is left to train, or the ranks are on several hosts.
    """
    variables = rank_variables(os.environ)
    rank, ranks = int(variables["RANK"]), int(variables["WORLD_SIZE"])
    trainers = ranks - generators
    if trainers < 1:
        raise UsageError(
            f"{ROLLOUT_KEY}={generators} leaves none of the {ranks} processes to train",
            keys=(ROLLOUT_KEY,),
            remedy=f"{generators + 1} processes or more, as torchrun --nproc-per-node starts them",
        )
    if generators > 0:
        if are_on_one_host(os.environ) is False:
            raise UsageError(
                f"{ROLLOUT_KEY}={generators} needs all {ranks} processes on one host, and they were"
                " started on several",
                keys=(ROLLOUT_KEY,),
                remedy=f"all of them on one host, as srun --nodes=1 --ntasks={ranks} starts them",
            )
        sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(trainers))
        os.environ.update(variables | sizes)
    return Roles(rank=rank, trainers=trainers, generators=generators)
