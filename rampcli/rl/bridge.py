"""Which ranks train and which only generate (`rl.rollout_ranks`), and the connection between them.

Weights and orders go from the first rank to those that generate. Rollouts go to the ranks that
train on them. Nothing goes through a file.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rampcli.errors import UsageError
from rampcli.machine.activity import waiting
from rampcli.settings.rl import RLConfig
from rampcli.worker.join import choose_interface, connect
from rampcli.worker.leave import RankLost
from rampcli.worker.starters import are_on_one_host, rank_variables

PATIENCE = timedelta(days=365)
"""How long joined ranks wait for each other. The connection to a rank that ends closes at once."""
_ROOT = dist.BroadcastOptions()
_ROOT.rootRank, _ROOT.rootTensor = 0, 0


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
            f"{RLConfig.rollout_ranks}={generators} leaves none of the {ranks} processes to train",
            keys=(RLConfig.rollout_ranks,),
            remedy=f"{generators + 1} processes or more, as torchrun --nproc-per-node starts them",
        )
    if generators > 0:
        if are_on_one_host(os.environ) is False:
            raise UsageError(
                f"{RLConfig.rollout_ranks}={generators} needs all {ranks} processes on one host,"
                " and they were"
                " started on several",
                keys=(RLConfig.rollout_ranks,),
                remedy=f"all of them on one host, as srun --nodes=1 --ntasks={ranks} starts them",
            )
        sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(trainers))
        os.environ.update(variables | sizes)
    return Roles(rank=rank, trainers=trainers, generators=generators)


class BridgeClosed(RankLost):
    """Raised if a rank at the other end has ended."""


class Staging:
    """Host memory through which weights go one by one. It is as large as the largest so far.

    For weights on a GPU it is pinned: the GPU copies from and to pageable memory at a fraction of
    the speed.
    """

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def memory_for(self, weight: Tensor) -> Tensor:
        """Returns memory of a weight's shape and type, until the next call."""
        if len(self._memory) < weight.nbytes:
            self._memory = torch.empty(weight.nbytes, dtype=torch.uint8, pin_memory=weight.is_cuda)
        return self._memory[: weight.nbytes].view(weight.dtype).view(weight.shape)

    def copy_of(self, weight: Tensor) -> Tensor:
        """Returns the weight in host memory, until the next call."""
        return self.memory_for(weight).copy_(weight) if weight.is_cuda else weight.contiguous()


class Bridge:
    """Connects all ranks of a node. It computes on the CPU; tensors on a GPU are copied.

    Each method raises `BridgeClosed` if a rank at the other end has ended.

    Args:
        roles: this rank and the others.
        start_timeout_s: seconds that a rank waits until the others have joined.
    """

    def __init__(self, roles: Roles, *, start_timeout_s: float) -> None:
        self.roles = roles
        self._staging = Staging()
        choose_interface(is_one_host=True)
        timeout = timedelta(seconds=start_timeout_s)
        store = connect(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout)
        everyone = roles.trainers + roles.generators
        self._orders = None
        with waiting:
            self._everyone = _group(store, "bridge", roles.rank, everyone)
            if roles.generates or roles.rank == 0:
                place = 1 + roles.generator if roles.generates else 0
                self._orders = _group(store, "orders", place, 1 + roles.generators)

    def order_rollouts(self, step: int, consumed_samples: int, weights: Iterable[Tensor]) -> None:
        """Orders the rollouts of a step, and sends the weights for it. Every rank that trains calls
        this.

        Args:
            step: steps taken so far.
            consumed_samples: prompts answered so far.
            weights: whole weights, in the order of the model's parameters. Producing them may be
                collective.
        """
        sends = self._orders is not None
        if sends:
            self._from_first(torch.tensor([step, consumed_samples]))
        for weight in weights:
            if sends:
                self._from_first(self._staging.copy_of(weight))

    def take_order(self) -> tuple[int, int]:
        """Waits for an order, on a rank that generates. Returns its step and consumed samples."""
        numbers = torch.empty(2, dtype=torch.int64)
        self._from_first(numbers)
        step, consumed_samples = numbers.tolist()
        return step, consumed_samples

    def take_weights(self, weights: Iterable[Tensor]) -> None:
        """Receives the weights of an order in place, on a rank that generates."""
        for weight in weights:
            received = self._staging.memory_for(weight)
            self._from_first(received)
            weight.copy_(received)

    def send(self, rollout: Tensor, ranks: Iterable[int], *, tag: int) -> list[dist.Work]:
        """Begins to send a rollout to ranks that train; the tensor must live until it is sent."""
        with _noticing_the_end():
            return [self._everyone.send([rollout], rank, tag) for rank in ranks]

    def receive(self, rollout: Tensor, *, tag: int) -> None:
        """Receives a rollout in place. Its tag is its number in the step."""
        with _noticing_the_end():
            self._everyone.recv([rollout], self.roles.generator_of(tag), tag).wait()

    def _from_first(self, tensor: Tensor) -> None:
        assert self._orders is not None
        with _noticing_the_end():
            self._orders.broadcast([tensor], _ROOT).wait()


def finish(sent: Iterable[dist.Work]) -> None:
    """Waits until everything is sent.

    Raises:
        BridgeClosed: a rank that trains has ended.
    """
    with _noticing_the_end():
        for work in sent:
            work.wait()


@contextmanager
def _noticing_the_end() -> Iterator[None]:
    """Waits for other ranks in the block. Raises BridgeClosed if gloo fails there."""
    try:
        with waiting:
            yield
    except RuntimeError as error:
        raise BridgeClosed(str(error)) from error


def _group(store: Any, name: str, rank: int, size: int) -> Any:
    """Returns a process group besides torch's default one. Torch declares no types for it."""
    # torchrun keeps the store while it restarts the ranks, which then have other addresses.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    prefixed = dist.PrefixStore(f"{name}_{attempt}", store)  # type: ignore[attr-defined]
    prefixed.set(f"joined_{rank}", "")
    prefixed.wait([f"joined_{each}" for each in range(size)])
    return dist.ProcessGroupGloo(prefixed, rank, size, PATIENCE)
