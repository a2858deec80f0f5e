"""Where the rollouts of a step come from: this rank, or ranks that only generate."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from rampcli.checkpoint.load import DTYPES, empty_model
from rampcli.data.loader import Batch
from rampcli.machine.activity import COMPUTING, begin, waiting
from rampcli.models.linear import round_factors
from rampcli.parallel.mesh import DATA, TENSOR
from rampcli.rl.bridge import Bridge
from rampcli.rl.generator import Generator, Rollout
from rampcli.rl.passes import PolicyPasses
from rampcli.settings.config import Config
from rampcli.train.stopping import Stopper
from rampcli.train.whole_model import is_split, whole_weights


class Policy:
    """A whole model with the present weights, on each rank that trains.

    A model that is not split generates itself. Otherwise each rank keeps a whole copy, in the type
    of the forward pass.

    Attributes:
        model: the model that generates responses.
        dtype: type of its weights.
    """

    def __init__(self, passes: PolicyPasses, config: Config) -> None:
        (self.trained,) = passes.parts
        self.dtype = DTYPES[config.trainer.precision]
        self.model = self.trained
        if is_split(passes.parts):
            self.model = empty_model(config, passes.device, self.dtype)
            round_factors(self.model.layers, config.trainer.matmul_precision, passes.device)

    def refresh(self) -> None:
        """Copies the present weights. Every rank calls this after they have changed."""
        if self.model is self.trained:
            return
        weights = whole_weights(self.trained, self.dtype)
        for copy, weight in zip(self.model.parameters(), weights, strict=True):
            copy.copy_(weight)


@dataclass
class RolloutSource:
    """Yields the rollouts of steps.

    Attributes:
        passes: the passes that train on them.
        waited_s: seconds that this rank has waited for the rollouts of the last step, or has spent
            on generating them.
    """

    generator: Generator
    policy: Policy
    passes: PolicyPasses
    waited_s: float = field(default=0.0, kw_only=True)

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

    The tensor-parallel ranks of a data-parallel rank generate in turn, then share the rollouts.
    """

    def rollouts(self, step: int, batch: Batch, stopper: Stopper) -> Iterator[Rollout]:
        """Generates the rollouts, then yields them."""
        began = time.perf_counter()
        self.policy.refresh()
        ranks, prompts, mine = self.passes.meshes.size(TENSOR), [], dict[int, Rollout]()
        for number in range(batch.plan.accumulate_grad_batches):
            if number > 0:
                stopper.agree_now_and_then()
            questions = self.generator.training_questions(batch.samples_of_micro_batch(number))
            prompts.append([question.tokens for question in questions])
            if number % ranks != self.passes.meshes.rank(TENSOR):
                continue
            with stopper.ending_early() as check:
                check()
                mine[number] = self.generator.generate(
                    self.policy.model,
                    questions,
                    step=step,
                    seed=self.generator.config.seed,
                    between=check,
                )
        stopper.agree()  # a rank that was asked to stop lacks rollouts
        begin(COMPUTING)
        shared = [
            self._shared(mine.get(number), tokens, owner=number % ranks)
            for number, tokens in enumerate(prompts)
        ]
        self.waited_s = time.perf_counter() - began
        yield from shared

    def _shared(
        self, rollout: Rollout | None, prompts: Sequence[Sequence[int]], *, owner: int
    ) -> Rollout:
        """Returns the rollout of the tensor-parallel rank `owner` on all of these ranks."""
        if rollout is not None and self.passes.meshes.size(TENSOR) == 1:
            return rollout
        if rollout is None:
            packed = self.generator.empty_rollout(len(prompts), self.passes.device)
        else:
            packed = rollout.to_tensor()
        group = self.passes.meshes.data[TENSOR].get_group()
        with waiting:
            dist.broadcast(packed, group_src=owner, group=group)
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
        for number in range(batch.plan.accumulate_grad_batches):
            questions = self.generator.training_questions(batch.samples_of_micro_batch(number))
            packed = self.generator.empty_rollout(len(questions), torch.device("cpu"))
            began = time.perf_counter()
            tag = number * batch.plan.data_parallel_size + self.passes.meshes.rank(DATA)
            self.bridge.receive(packed, tag=tag)
            self.waited_s += time.perf_counter() - began
            prompts = [question.tokens for question in questions]
            yield Rollout.from_tensor(packed.to(self.passes.device), prompts)
