"""The connection between ranks that train and ranks that generate.

Weights and orders go from the first rank to those that generate. Rollouts go to the ranks that
train on them. Nothing goes through a file.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rampcli.rl.roles import Roles
from rampcli.worker.join import JOIN_TIMEOUT, choose_interface


class BridgeClosed(Exception):
    """Raised if the ranks at the other end have gone."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the ranks that generate do next: the rollouts of one step.

    Attributes:
        step: steps taken so far.
        consumed_samples: prompts answered so far.
    """

    step: int
    consumed_samples: int


class Bridge:
    """Connects all ranks of a node. It computes on the CPU; tensors on a GPU are copied.

    Args:
        roles: this rank and the others.
    """

    def __init__(self, roles: Roles) -> None:
        self.roles = roles
        choose_interface(is_one_host=True)
        store = dist.TCPStore(  # type: ignore[attr-defined]
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            timeout=JOIN_TIMEOUT,
            wait_for_workers=False,
        )
        everyone = roles.trainers + roles.generators
        self._everyone = _group(store, "bridge", roles.rank, everyone)
        self._orders = None
        if roles.generates or roles.rank == 0:
            place = 1 + roles.generator if roles.generates else 0
            self._orders = _group(store, "orders", place, 1 + roles.generators)

    def give(self, order: Order, weights: Iterable[Tensor]) -> None:
        """Sends an order and the weights for it. Every rank that trains calls this.

        Args:
            order: what to do.
            weights: whole weights, in the order of the model's parameters. Producing them may be
                collective.
        """
        sends = self._orders is not None
        if sends:
            self._from_first(torch.tensor([order.step, order.consumed_samples]))
        for weight in weights:
            if sends:
                self._from_first(weight.contiguous().cpu())

    def take_order(self) -> Order:
        """Waits for an order, on a rank that generates.

        Raises:
            BridgeClosed: the ranks that train have gone.
        """
        numbers = torch.empty(2, dtype=torch.int64)
        self._from_first(numbers)
        step, consumed_samples = numbers.tolist()
        return Order(step, consumed_samples)

    def take_weights(self, weights: Iterable[Tensor]) -> None:
        """Receives the weights of an order in place, on a rank that generates.

        Raises:
            BridgeClosed: the ranks that train have gone.
        """
        for weight in weights:
            received = torch.empty_like(weight, device="cpu")
            self._from_first(received)
            weight.copy_(received)

    def send(self, rollout: Tensor, ranks: Iterable[int], *, tag: int) -> list[dist.Work]:
        """Begins to send a rollout to ranks that train; the tensor must live until it is sent."""
        return [self._everyone.send([rollout], rank, tag) for rank in ranks]

    def receive(self, rollout: Tensor, *, tag: int) -> None:
        """Receives a rollout in place. Its tag is its number in the step."""
        self._everyone.recv([rollout], self.roles.generator_of(tag), tag).wait()

    def _from_first(self, tensor: Tensor) -> None:
        assert self._orders is not None
        try:
            self._orders.broadcast([tensor], _ROOT).wait()
        except RuntimeError as error:
            raise BridgeClosed(str(error)) from error


_ROOT = dist.BroadcastOptions()
_ROOT.rootRank, _ROOT.rootTensor = 0, 0


def finish(sent: Iterable[dist.Work]) -> None:
    """Waits until everything is sent.

    Raises:
        BridgeClosed: the ranks that train have gone.
    """
    try:
        for work in sent:
            work.wait()
    except RuntimeError as error:
        raise BridgeClosed(str(error)) from error


def _group(store: Any, name: str, rank: int, size: int) -> Any:
    """Returns a process group besides torch's default one. Torch declares no types for it."""
    prefixed = dist.PrefixStore(name, store)  # type: ignore[attr-defined]
    return dist.ProcessGroupGloo(prefixed, rank, size, JOIN_TIMEOUT)
