"""Where the rollouts of a step come from: this rank, or ranks that only generate."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from rampcli.data.loader import Batch
from rampcli.parallel.mesh import DATA, TENSOR, Meshes
from rampcli.rl.bridge import Bridge
from rampcli.rl.generator import Generator
from rampcli.rl.policy import Policy
from rampcli.rl.rollout import Rollout
from rampcli.train.stopper import Stopper
from rampcli.train.whole_model import whole_weights


@dataclass(kw_only=True)
class RolloutSource:
    """Yields the rollouts of steps.

    Attributes:
        waited_s: seconds that this rank has waited for the rollouts of the last step, or has spent
            on generating them.
    """

    generator: Generator
    policy: Policy
    meshes: Meshes
    device: torch.device
    waited_s: float = 0.0

    def rollouts(self, step: int, batch: Batch, stopper: Stopper) -> Iterator[Rollout]:
        """Yields the rollouts of a step, one for each micro batch of prompts.

        The weights stand still until the first update. Every rank calls this.

        Args:
            step: steps taken so far.
            batch: the samples whose prompts this rank trains on.
            stopper: ends the rollouts if a rank must stop.

        Raises:
            StopAgreed: a rank must stop.
        """
        raise NotImplementedError


class TakingTurns(RolloutSource):
    """Generates all rollouts of a step before the first pass on them.

    The tensor-parallel ranks of a data-parallel rank generate in turn.
    """

    def rollouts(self, step: int, batch: Batch, stopper: Stopper) -> Iterator[Rollout]:
        """Generates the rollouts, then yields them."""
        began = time.perf_counter()
        self.policy.refresh()
        ranks, found = self.meshes.size(TENSOR), []
        for number in range(batch.split.accumulate_grad_batches):
            if number > 0:
                stopper.agree_now_and_then()
            with stopper.ending_early() as check:
                check()
                found.append(self._answer(step, batch, number, check))
        stopper.agree()  # on a rank that was asked, rollouts are missing
        shared = [self._shared(one, number % ranks) for number, one in enumerate(found)]
        self.waited_s = time.perf_counter() - began
        yield from shared

    def _answer(
        self, step: int, batch: Batch, number: int, between: Callable[[], None]
    ) -> "Rollout | Sequence[Sequence[int]]":
        """Returns a rollout on the rank that generates it, its prompts on the others."""
        questions = self.generator.training_questions(batch.samples_of_micro_batch(number))
        if number % self.meshes.size(TENSOR) != self.meshes.rank(TENSOR):
            return [question.tokens for question in questions]
        return self.generator.generate(
            self.policy.model,
            questions,
            step=step,
            seed=self.generator.config.seed,
            between=between,
        )

    def _shared(self, rollout: "Rollout | Sequence[Sequence[int]]", owner: int) -> Rollout:
        """Returns a rollout on all tensor-parallel ranks.

        Args:
            rollout: the rollout on the rank that generated it, its prompts on the others.
            owner: the tensor-parallel rank that generated it.
        """
        if isinstance(rollout, Rollout) and self.meshes.size(TENSOR) == 1:
            return rollout
        if isinstance(rollout, Rollout):
            packed, prompts = rollout.to_tensor(), rollout.prompts
        else:
            packed, prompts = self.generator.empty_rollout(len(rollout), self.device), rollout
        dist.broadcast(packed, group_src=owner, group=self.meshes.data[TENSOR].get_group())
        return Rollout.from_tensor(packed, prompts)


@dataclass(kw_only=True)
class FromOtherRanks(RolloutSource):
    """Receives rollouts from ranks that generate while this one trains."""

    bridge: Bridge

    def rollouts(self, step: int, batch: Batch, stopper: Stopper) -> Iterator[Rollout]:  # noqa: ARG002
        """Sends the weights, and yields the rollouts as they arrive."""
        began = time.perf_counter()
        weights = whole_weights(self.policy.trained, self.policy.dtype)
        self.bridge.order_rollouts(step, batch.first_sample, weights)
        self.waited_s = time.perf_counter() - began
        for number in range(batch.split.accumulate_grad_batches):
            questions = self.generator.training_questions(batch.samples_of_micro_batch(number))
            packed = self.generator.empty_rollout(len(questions), torch.device("cpu"))
            began = time.perf_counter()
            tag = number * batch.split.data_parallel_size + self.meshes.rank(DATA)
            self.bridge.receive(packed, tag=tag)
            self.waited_s += time.perf_counter() - began
            prompts = [question.tokens for question in questions]
            yield Rollout.from_tensor(packed.to(self.device), prompts)
