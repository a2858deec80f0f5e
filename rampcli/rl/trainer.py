"""The training loop of reinforcement learning: each step generates, scores and trains."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count, islice
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from rampcli.batch.pairs import PairBatch, PairSettings
from rampcli.batch.plan import BatchPlan
from rampcli.data.loader import Batch, samples_of
from rampcli.errors import RampcliError
from rampcli.machine.activity import COMPUTING, begin
from rampcli.models.sampler import Sampling
from rampcli.parallel.mesh import DATA, TENSOR
from rampcli.parallel.ranks import gather_tensors
from rampcli.rl.generator import Rollout
from rampcli.rl.metrics import SOLVED, RolloutSums, columns_of, times_of
from rampcli.rl.objective import PolicyBatch, PolicySums, batch_std, group_advantages
from rampcli.rl.passes import PolicyPasses, accumulate_policy_gradient, batch_of
from rampcli.rl.sources import RolloutSource
from rampcli.schedule.learning_rate import StepValues
from rampcli.settings.rl import RLConfig
from rampcli.train.loop import Trainer, is_due
from rampcli.train.observers.journal import finite
from rampcli.train.observers.model_observer import Measurement
from rampcli.train.step import StepResult, TakenStep, update_weights

EVALUATION_SEED = 1
"""Added to the seed, so that evaluations draw other numbers than training."""
LONGEST_TEXT = 40_000
"""Longest text in a row of responses.jsonl, in characters. JSON needs up to 12 bytes for each."""
MOST_RESPONSES_SHOWN = 4
"""Responses of a step that are written to responses.jsonl."""


@dataclass(kw_only=True, slots=True)
class PolicyTrainer(Trainer):
    """Trains a policy. The samples of its stages are prompts.

    Attributes:
        source: yields the rollouts of each step.
        pairs: how prompts become pairs.
        has_warned: rank 0 has warned of responses without a reward.
    """

    source: RolloutSource
    pairs: PairSettings
    has_warned: bool = False

    VALIDATION_EVENT: ClassVar[str] = "evaluation"

    def run(self) -> str:
        """Trains as `Trainer.run`, with the process of the user's reward function."""
        with self.source.generator.scorer:
            return Trainer.run(self)

    def read(self, batch_plan: BatchPlan) -> Batch:
        """Returns this rank's samples. Their prompts are read when they are answered."""
        first = self.state.consumed_samples
        samples = samples_of([self.passes.meshes.rank(DATA)], first, batch_plan).ravel()
        return Batch(first_sample=first, plan=batch_plan, samples=samples)

    def start_step(self, batch: Batch) -> None:
        """Takes a step. Its numbers are known at once."""
        step = self.take_step(batch)
        self.unfinished = lambda: step

    def take_step(self, batch: Batch) -> TakenStep:
        """Takes a step: answers its prompts, scores the responses and updates the weights.

        Raises:
            StopAgreed: a rank must stop. Nothing has changed then.
            RampcliError: a pair cannot be scored, and the run ends at such pairs.
        """
        begin(COMPUTING)
        self._agree_on_tokens(batch.valid_tokens)
        rollouts: list[Rollout] = []
        scored = self._scored(batch, into=rollouts)
        measurement = Measurement(self.measurers, self.state.step + 1)
        results, policy_sums, skipped = self._update_weights(batch.plan, scored, measurement)
        step_time_s = time.perf_counter() - batch.began
        self.micro_batch_s = step_time_s / batch.plan.accumulate_grad_batches
        sums = RolloutSums.of(rollouts, stop=self.source.generator.data.format.end)
        totals = sums.over_ranks(self.passes)
        self._check_scored(totals)
        self._record_responses(batch, rollouts)
        generators = self.config.rl.rollout_ranks
        last = self._values_of(self.pairs.updates - 1, batch.plan)
        times = times_of(
            totals,
            batch.plan,
            waited_s=self.source.waited_s,
            step_time_s=step_time_s,
            generators=generators,
        )
        return TakenStep(
            stage=self.plan.stage_at(self.state.consumed_samples),
            batch=replace(batch, data_time_s=self.source.waited_s),
            result=_mean(results),
            lr=last.lr,
            skipped="; ".join(skipped) or None,
            step_time_s=step_time_s,
            tokens=int(totals.tokens),
            columns=columns_of(
                totals,
                PolicySums(*map(sum, zip(*policy_sums, strict=True))),
                times,
                generators=generators,
            )
            | last.coupled()
            | measurement.columns(results[-1].measured),
        )

    def _update_weights(
        self,
        batch_plan: BatchPlan,
        scored: Iterable[tuple[Rollout, Tensor]],
        measurement: Measurement,
    ) -> tuple[list[StepResult], list[PolicySums], list[str]]:
        """Makes the updates of a step from rollouts with the advantages of their pairs.

        Returns the result of each update, its sums over all ranks, and why updates were skipped.
        """
        assert isinstance(self.passes, PolicyPasses)
        per_update = PairBatch.of(batch_plan, self.pairs).accumulation
        arriving = self._passes_of(scored, per_update=per_update)
        results, policy_sums, skipped = list[StepResult](), list[PolicySums](), list[str]()
        for update in range(self.pairs.updates):
            is_last = update == self.pairs.updates - 1
            result, sums = accumulate_policy_gradient(
                self.passes,
                islice(arriving, per_update),
                count=per_update,
                gradient_clip_val=self.config.trainer.gradient_clip_val,
                # Later, the weights of this step have changed already.
                between=self.stopper.agree_now_and_then if update == 0 else lambda: None,
                measurement=measurement if is_last else None,
            )
            reason = self.guard.judge(self.state, result)
            if reason is not None:
                where = f"update {update + 1} of {self.pairs.updates}: "
                skipped.append(reason if self.pairs.updates == 1 else where + reason)
            values = self._values_of(update, batch_plan)
            update_weights(self.optimizers, **asdict(values), skip=reason is not None)
            results.append(result)
            policy_sums.append(sums)
        return results, policy_sums, skipped

    def _scored(self, batch: Batch, *, into: list[Rollout]) -> Iterator[tuple[Rollout, Tensor]]:
        """Yields the rollouts of a step with the advantages of their pairs, fp32 [pairs].

        `into` receives the rollouts.
        """
        arriving = self.source.rollouts(self.state.step, batch, self.stopper)
        if self.config.rl.scale_rewards == "batch":
            into += arriving
            yield from zip(into, self._advantages(into), strict=True)
        else:
            for rollout in arriving:
                into.append(rollout)
                (advantages,) = self._advantages([rollout])
                yield rollout, advantages

    def _advantages(self, rollouts: Sequence[Rollout]) -> list[Tensor]:
        """Returns the advantages of the pairs of each rollout, fp32 [pairs]."""
        scale, std = self.config.rl.scale_rewards, None
        if scale == "batch":
            mine = torch.cat([rollout.rewards for rollout in rollouts]).to(self.passes.device)
            everyone = gather_tensors(mine, self.passes.meshes.data[DATA].get_group())
            std = batch_std(torch.cat(everyone).cpu())
        return [
            group_advantages(rollout.rewards, scale=scale, batch_std=std).flatten()
            for rollout in rollouts
        ]

    def _passes_of(
        self, scored: Iterable[tuple[Rollout, Tensor]], *, per_update: int
    ) -> Iterator[PolicyBatch]:
        """Yields the pairs of rollouts, one batch for each forward and backward pass.

        `per_update` is the number of passes of an update.
        """
        passes = count()
        for rollout, advantages in scored:
            size = self.pairs.pairs_per_pass(len(rollout.prompts))
            for first in range(0, len(advantages), size):
                yield batch_of(
                    rollout,
                    advantages,
                    slice(first, first + size),
                    is_first_update=next(passes) < per_update,
                    multiple=self.passes.meshes.size(TENSOR),
                )

    def _values_of(self, update: int, batch_plan: BatchPlan) -> StepValues:
        prompts = batch_plan.global_batch_size * (update + 1) // self.pairs.updates
        return self.values_after(prompts, batch_plan)

    def _check_scored(self, totals: RolloutSums) -> None:
        """Ends the run if a step has no reward to learn from. Warns once if some are missing."""
        missing, reward = int(totals.pairs - totals.scored), self.config.rl.reward
        if not missing:
            return
        reason = self.source.generator.last_bad_reward or "see the log"
        if totals.scored == 0:
            raise RampcliError(
                f"rl.reward={reward} could not score any response of step {self.state.step + 1}:"
                f" {reason}",
                keys=(RLConfig.reward,),
                remedy="a reward function that works for these examples",
            )
        if dist.get_rank() == 0 and not self.has_warned:
            self.has_warned = True
            self.checkpoints.run.append_event(
                "fault",
                reason=f"{missing} of {int(totals.pairs)} responses of step {self.state.step + 1}"
                f" have no reward and are left out: {reason}",
            )

    def _record_responses(self, batch: Batch, rollouts: Sequence[Rollout]) -> None:
        """Writes some responses of this step to responses.jsonl, if they are due."""
        step, run = self.state.step + 1, self.checkpoints.run
        if dist.get_rank() != 0 or not is_due(step, self.config.rl.samples_every_steps):
            return
        generator, rollout = self.source.generator, rollouts[0]
        questions = generator.training_questions(batch.samples[: len(rollout.prompts)])
        pairs = zip(generator.texts(rollout.responses), rollout.rewards.flatten(), strict=True)
        for number, (text, reward) in enumerate(islice(pairs, MOST_RESPONSES_SHOWN)):
            example = questions[number // self.pairs.generations].example
            row = {
                "step": step,
                "prompt": example.prompt[:LONGEST_TEXT],
                "response": text[:LONGEST_TEXT],
                "reward": finite(reward.item()),
            }
            run.append_row(run.responses, row)

    def _validate(self, batch_plan: BatchPlan) -> None:
        """Evaluates held-out prompts, which the ranks divide among them. Every rank calls this.

        Each prompt is answered with the likeliest tokens (`greedy`), and once as in training
        (`sampled`). Responses without a reward are left out, and counted as `unscored`. `reason`
        says why this rank could not score its last one.
        """
        if not self.config.trainer.val_samples:
            return
        began, sampled = time.perf_counter(), self.source.generator.sampling
        self.source.policy.refresh()
        prompts = min(self.config.trainer.val_samples, len(self.source.generator.data.validation))
        kinds = {"greedy": replace(sampled, temperature=0.0), "sampled": sampled}
        totals = self._evaluate(
            list(kinds.values()),
            prompts,
            at_once=batch_plan.micro_batch_size * self.pairs.generations,
        )
        unscored = len(kinds) * prompts - int(sum(scored for scored, _, _ in totals))
        results: dict[str, float | str | None] = {"prompts": prompts, "unscored": unscored}
        results["reason"] = self.source.generator.last_bad_reward if unscored else None
        for kind, (scored, reward, solved) in zip(kinds, totals, strict=True):
            results[kind] = reward / scored if scored else None
            results[f"{kind}_solved"] = solved / scored if scored else None
        results["evaluation_s"] = round(time.perf_counter() - began, 3)
        self.observers.after_evaluation(self.state, results)

    def _evaluate(
        self, samplings: Sequence[Sampling], prompts: int, *, at_once: int
    ) -> list[list[float]]:
        """Answers the first held-out prompts once with each sampling, `at_once` prompts per rank.

        Returns, for each sampling, the number of scored responses, the sum of their rewards, and
        the number of solved ones, over all ranks.
        """
        generator = self.source.generator
        sums = torch.zeros(len(samplings), 3, dtype=torch.float64)
        for first in range(0, prompts, at_once * dist.get_world_size()):
            begin = first + dist.get_rank() * at_once
            mine = range(begin, min(begin + at_once, prompts))
            questions = generator.questions(generator.data.validation, mine, numbers=mine)
            with self.stopper.ending_early() as check:
                for row, sampling in enumerate(samplings) if questions else ():
                    check()
                    rollout = generator.generate(
                        self.source.policy.model,
                        questions,
                        step=self.state.step,
                        seed=self.config.seed + EVALUATION_SEED,
                        sampling=sampling,
                        generations=1,
                        between=check,
                    )
                    scored = rollout.rewards[~rollout.rewards.isnan()]
                    found = [len(scored), float(scored.sum()), float((scored >= SOLVED).sum())]
                    sums[row] += sums.new_tensor(found)
            self.stopper.agree_now_and_then()
        self.stopper.agree()
        return [self.passes.sum_over_ranks(row.tolist()) for row in sums]


def _mean(results: Sequence[StepResult]) -> StepResult:
    count = len(results)
    return StepResult(
        loss=sum(result.loss for result in results) / count,
        grad_norm=sum(result.grad_norm for result in results) / count,
    )
