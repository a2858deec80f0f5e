"""The training loop of reinforcement learning: each step generates, scores and trains."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from rampcli.batch.pairs import PairSettings
from rampcli.batch.plan import BatchPlan
from rampcli.batch.training_plan import StagePlan
from rampcli.data.loader import RankBatch, samples_of
from rampcli.parallel.mesh import DATA, TENSOR
from rampcli.rl.advantages import batch_std, group_advantages
from rampcli.rl.evaluation import evaluate
from rampcli.rl.metrics import RolloutSums, columns_of
from rampcli.rl.objective import PolicyBatch
from rampcli.rl.passes import PolicyPasses, batch_of
from rampcli.rl.policy import Policy
from rampcli.rl.rollout import Generator, Rollout, describe_pair
from rampcli.rl.update import accumulate_policy_gradient
from rampcli.train.loop import Batch, Trainer, is_due
from rampcli.train.step import Step, StepResult, update_weights

MOST_RESPONSES_SHOWN = 4
"""Responses of a step that are written to responses.jsonl."""


@dataclass(kw_only=True, slots=True)
class PolicyTrainer(Trainer):
    """Trains a policy. The samples of its stages are prompts.

    Attributes:
        policy: what generates.
        generator: generates and scores.
        pairs: how prompts become pairs.
    """

    policy: Policy
    generator: Generator
    pairs: PairSettings

    VALIDATION_EVENT: ClassVar[str] = "evaluation"

    def read(self, stage: StagePlan, plan: BatchPlan) -> Batch:
        """Returns this rank's samples. Their prompts are read when they are answered."""
        began, rank = time.perf_counter(), self.passes.meshes.rank(DATA)
        samples = samples_of([rank], self.state.consumed_samples, plan).ravel()
        share = RankBatch([], samples, valid_tokens=0)
        return Batch(stage=stage, plan=plan, share=share, began=began, data_time_s=0.0)

    def take_step(self, batch: Batch) -> Step:
        """Takes a step: answers its prompts, scores the responses and updates the weights.

        Raises:
            StopAgreed: a rank must stop. Nothing has changed then.
            RampcliError: a pair cannot be scored, and the run ends at such pairs.
        """
        assert isinstance(self.passes, PolicyPasses)
        self._agree_on_tokens(batch.share)
        rollouts = self._generate(batch)
        generated_s = time.perf_counter() - batch.began
        advantages = self._advantages(rollouts)
        count = len(rollouts) // self.pairs.updates
        results: list[StepResult] = []
        skipped: str | None = None
        sums, lr = torch.zeros_like(self.passes.sums), 0.0
        for update in range(self.pairs.updates):
            chosen = slice(update * count, (update + 1) * count)
            result, of_update = accumulate_policy_gradient(
                self.passes,
                self._passes_of(rollouts[chosen], advantages[chosen], is_first=update == 0),
                gradient_clip_val=self.config.trainer.gradient_clip_val,
                between=self._stop_if_agreed if update == 0 else lambda: None,
            )
            reason = self.observers.before_update(self.state, result)
            skipped = skipped or reason
            lr = self._rate_after(update, batch.plan)
            update_weights(self.optimizers, lr=lr, skip=reason is not None)
            results.append(result)
            sums += of_update
        step_time_s = time.perf_counter() - batch.began
        self.micro_batch_s = step_time_s / batch.plan.accumulate_grad_batches
        totals = self._sum_rollouts(rollouts)
        self._record_responses(batch, rollouts)
        return Step(
            stage=batch.stage,
            batch_plan=batch.plan,
            samples=batch.share.samples,
            result=_mean(results),
            lr=lr,
            skipped=skipped,
            step_time_s=step_time_s,
            data_time_s=generated_s,
            tokens=int(totals.tokens),
            columns=columns_of(
                totals,
                sums,
                generations=self.pairs.generations,
                rollout_s=generated_s,
                training_s=step_time_s - generated_s,
            ),
        )

    def _generate(self, batch: Batch) -> list[Rollout]:
        """Returns this data-parallel rank's rollouts, one for each micro batch of prompts.

        The tensor-parallel ranks of a data-parallel rank generate them in turn.
        """
        self.policy.refresh()
        tensor, ranks = self.passes.meshes.rank(TENSOR), self.passes.meshes.size(TENSOR)
        rollouts: list[Rollout | Sequence[Sequence[int]]] = []
        for number in range(batch.plan.accumulate_grad_batches):
            if number > 0:
                self._stop_if_agreed()
            size = batch.plan.micro_batch_size
            samples = batch.share.samples[number * size : (number + 1) * size]
            questions = self.generator.training_questions(samples)
            rollouts.append(
                self.generator.generate(
                    self.policy.model, questions, step=self.state.step, seed=self.config.seed
                )
                if number % ranks == tensor
                else [question.tokens for question in questions]
            )
        return [self._shared(one, number % ranks) for number, one in enumerate(rollouts)]

    def _shared(self, rollout: "Rollout | Sequence[Sequence[int]]", owner: int) -> Rollout:
        """Returns a rollout on all tensor-parallel ranks.

        Args:
            rollout: the rollout on the rank that generated it, its prompts on the others.
            owner: the tensor-parallel rank that generated it.
        """
        meshes = self.passes.meshes
        if meshes.size(TENSOR) == 1:
            assert isinstance(rollout, Rollout)
            return rollout
        group = meshes.data[TENSOR].get_group()
        pairs = self.pairs.generations
        if isinstance(rollout, Rollout):
            packed, prompts = rollout.to_tensor(), rollout.prompts
        else:
            width = 2 * self.generator.sampling.max_tokens + 3
            packed = torch.empty(
                len(rollout) * pairs, width, dtype=torch.float64, device=self.passes.device
            )
            prompts = rollout
        dist.broadcast(packed, group_src=owner, group=group)
        return Rollout.from_tensor(packed, prompts)

    def _advantages(self, rollouts: Sequence[Rollout]) -> list[Tensor]:
        """Returns the advantages of the pairs of each rollout, fp32 [pairs]."""
        scale, std = self.config.rl.scale_rewards, None
        if scale == "batch":
            mine = torch.cat([rollout.rewards for rollout in rollouts]).to(self.passes.device)
            everyone = torch.empty(
                self.passes.meshes.size(DATA) * len(mine),
                mine.shape[1],
                dtype=mine.dtype,
                device=mine.device,
            )
            group = self.passes.meshes.data[DATA].get_group()
            dist.all_gather_into_tensor(everyone, mine, group=group)
            std = batch_std(everyone.cpu())
        return [
            group_advantages(rollout.rewards, scale=scale, batch_std=std).flatten()
            for rollout in rollouts
        ]

    def _passes_of(
        self, rollouts: Sequence[Rollout], advantages: Sequence[Tensor], *, is_first: bool
    ) -> list[PolicyBatch]:
        """Returns the pairs of some rollouts, one batch for each forward and backward pass."""
        return [
            batch_of(
                rollout,
                of_pairs,
                slice(first, first + self.pairs.pairs_per_pass(len(rollout.prompts))),
                is_first_update=is_first,
                multiple=self.passes.meshes.size(TENSOR),
            )
            for rollout, of_pairs in zip(rollouts, advantages, strict=True)
            for first in range(0, len(of_pairs), self.pairs.pairs_per_pass(len(rollout.prompts)))
        ]

    def _rate_after(self, update: int, plan: BatchPlan) -> float:
        """Returns the learning rate of an update of a step."""
        prompts = plan.global_batch_size * (update + 1) // self.pairs.updates
        return self.learning_rate.at(
            self.state.consumed_samples + prompts, global_batch_size=plan.global_batch_size
        )

    def _sum_rollouts(self, rollouts: Sequence[Rollout]) -> RolloutSums:
        """Returns sums over the rollouts of all ranks."""
        return RolloutSums.of(rollouts).over_ranks(
            self.passes.device, counts=self.passes.meshes.counts_samples
        )

    def _record_responses(self, batch: Batch, rollouts: Sequence[Rollout]) -> None:
        """Writes some responses of this step to responses.jsonl, if they are due."""
        step, run = self.state.step + 1, self.checkpoints.run
        if dist.get_rank() != 0 or not is_due(step, self.config.rl.samples_every_steps):
            return
        rollout = rollouts[0]
        count = len(rollout.prompts)
        questions = self.generator.training_questions(batch.share.samples[:count])
        texts, rewards = self.generator.texts(rollout), rollout.rewards.flatten().tolist()
        for number in range(min(MOST_RESPONSES_SHOWN, len(texts))):
            example = questions[number // self.pairs.generations].example
            row = describe_pair(example, texts[number], rewards[number])
            run.append_row(run.responses, {"step": step, **row})

    def _validate(self, plan: BatchPlan) -> None:
        """Evaluates held-out prompts, each with its likeliest response and with a drawn one."""
        samples = self.config.trainer.val_samples
        if samples:
            self.policy.refresh()
            results = evaluate(
                self.generator,
                self.policy.model,
                prompts=samples,
                at_once=plan.micro_batch_size * self.pairs.generations,
                step=self.state.step,
                device=self.passes.device,
                between=self._stop_if_agreed,
            )
            self.observers.after_evaluation(self.state, results)


def _mean(results: Sequence[StepResult]) -> StepResult:
    """Returns the mean loss and gradient norm of the updates of a step."""
    count = len(results)
    return StepResult(
        loss=sum(result.loss for result in results) / count,
        grad_norm=sum(result.grad_norm for result in results) / count,
    )
