"""Generates and scores responses to prompts: rollouts."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rampcli.batch.scrambling import hash_of
from rampcli.data.examples import Example, Examples
from rampcli.data.order import Indices, SampleOrder
from rampcli.data.prompts import Prompts, read_prompts
from rampcli.errors import RampcliError
from rampcli.machine.activity import GENERATING, SCORING, begin
from rampcli.models.decoder import Decoder
from rampcli.models.sampler import Responses, Sampling, sample_responses
from rampcli.planning.reading_start import ReadingStart
from rampcli.rl.rewards import Score
from rampcli.rl.scorer import Scorer
from rampcli.settings.config import Config
from rampcli.settings.rl import RLConfig, max_response_tokens

SCORED_AT_ONCE = 64
"""Responses that are sent to the scorer together."""
LONGEST_SHOWN_PROMPT = 200
"""Characters of a prompt that an error shows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """Responses to the prompts of a micro batch, with their rewards.

    The pairs of a prompt are adjacent.

    Attributes:
        prompts: tokens of each prompt.
        responses: the responses, padded to `max_response_tokens`.
        rewards: float64 [prompts, generations]; NaN for a pair that could not be scored.
        seconds: time that it took to generate and to score.
    """

    prompts: Sequence[Sequence[int]]
    responses: Responses
    rewards: Tensor
    seconds: float

    def to_tensor(self) -> Tensor:
        """Returns everything but the prompts as float64 [pairs, 2 x max_response_tokens + 3]."""
        responses = self.responses
        seconds = torch.full_like(responses.lengths, self.seconds, dtype=torch.float64)
        columns = (responses.lengths.double(), self.rewards.flatten().to(seconds), seconds)
        parts = (responses.tokens.double(), responses.log_probs.double())
        return torch.cat([*parts, torch.stack(columns, dim=1)], dim=1)

    @staticmethod
    def columns(max_response_tokens: int) -> int:
        """Returns the width of `to_tensor`."""
        return 2 * max_response_tokens + 3

    @classmethod
    def from_tensor(cls, packed: Tensor, prompts: Sequence[Sequence[int]]) -> "Rollout":
        """Returns the rollout that `to_tensor` packed, of the same prompts."""
        longest = (packed.shape[1] - 3) // 2
        tokens, log_probs, rest = torch.split(packed, [longest, longest, 3], dim=1)
        return cls(
            prompts=prompts,
            responses=Responses(
                tokens=tokens.long(), lengths=rest[:, 0].long(), log_probs=log_probs.float()
            ),
            rewards=rest[:, 1].reshape(len(prompts), -1).cpu(),
            seconds=float(rest[0, 2]),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A prompt that is answered.

    Attributes:
        number: its number, from which its random numbers follow.
        example: what the prompt comes from.
    """

    number: int
    tokens: list[int]
    example: Example


class Generator:
    """Generates and scores responses.

    Args:
        data: prompts, and how they become tokens.
        reading: where the phase begins to read the prompts.

    Attributes:
        samples_before: samples of the run before the first one in the order of the prompts.
        last_bad_reward: why a response could last not be scored, or None.
    """

    def __init__(
        self, config: Config, data: Prompts, scorer: Scorer, *, reading: ReadingStart
    ) -> None:
        self.config = config
        self.data = data
        self.scorer = scorer
        self.last_bad_reward: str | None = None
        (start,) = reading.corpora
        self.order = SampleOrder(
            windows=len(data.training), seed=config.seed, corpus=start.corpus, phase=start.phase
        )
        self.samples_before = reading.first_sample - start.samples
        self.generations = config.rl.generations_per_prompt or 1
        self.sampling = Sampling(
            temperature=config.rl.temperature,
            top_k=config.rl.top_k,
            top_p=config.rl.top_p,
            max_tokens=max_response_tokens(config),
            stops=(data.format.end,),
            vocab_size=len(data.format.is_special),
        )

    def training_questions(self, samples: Indices) -> list[Question]:
        """Returns the prompts of some samples of the run.

        A repeated prompt gets a new number, so its responses differ.
        """
        indices = self.order.windows_of(samples - self.samples_before).tolist()
        return self.questions(self.data.training, indices, numbers=samples.tolist())

    def questions(
        self, examples: Examples, indices: Sequence[int], *, numbers: Sequence[int]
    ) -> list[Question]:
        """Returns prompts by the indices of their examples.

        Args:
            numbers: number of each prompt, from which its random numbers follow.

        Raises:
            UsageError: a prompt leaves no room for its response.
        """
        found = read_prompts(examples, indices, self.data.format, self.config)
        return [
            Question(number=number, tokens=tokens.tolist(), example=example)
            for number, (example, tokens) in zip(numbers, found, strict=True)
        ]

    def generate(
        self,
        model: Decoder,
        questions: Sequence[Question],
        *,
        step: int,
        seed: int,
        sampling: Sampling | None = None,
        generations: int | None = None,
        between: Callable[[], None] = lambda: None,
    ) -> Rollout:
        """Returns scored responses to some prompts.

        Each pair has random numbers of its own: they depend on the seed, the step, the prompt's
        number and the number of the generation alone.

        Calls `between` after each token, and often while the scores are computed. An exception that
        it raises ends the rollout.

        Raises:
            RampcliError: a pair cannot be scored, and the run ends at such pairs.
        """
        began, generations = time.perf_counter(), generations or self.generations
        sampling = sampling or self.sampling
        numbers = np.array([question.number for question in questions], dtype=np.int64)
        streams = hash_of(seed, step, numbers[:, None], np.arange(generations)).ravel()
        begin(GENERATING)
        responses = sample_responses(
            model,
            [question.tokens for question in questions],
            generations=generations,
            sampling=sampling,
            streams=streams,
            between=between,
        )
        begin(SCORING)
        rewards = self._score(questions, self.texts(responses), generations, between)
        return Rollout(
            prompts=[question.tokens for question in questions],
            responses=Responses(
                tokens=_widened(responses.tokens, sampling.max_tokens),
                lengths=responses.lengths,
                log_probs=_widened(responses.log_probs, sampling.max_tokens),
            ),
            rewards=rewards,
            seconds=time.perf_counter() - began,
        )

    def empty_rollout(self, prompts: int, device: torch.device) -> Tensor:
        """Returns memory for the rollout of some prompts, as `Rollout.to_tensor` packs it."""
        shape = (prompts * self.generations, Rollout.columns(self.sampling.max_tokens))
        return torch.empty(shape, dtype=torch.float64, device=device)

    def texts(self, responses: Responses) -> list[str]:
        """Returns responses as text."""
        rows = zip(responses.tokens.tolist(), responses.lengths.tolist(), strict=True)
        return [self.data.format.decode_response(row[:length]) for row, length in rows]

    def _score(
        self,
        questions: Sequence[Question],
        texts: Sequence[str],
        generations: int,
        between: Callable[[], None],
    ) -> Tensor:
        """Returns rewards, float64 [prompts, generations]."""
        examples = [question.example for question in questions for _ in range(generations)]
        pairs = [
            (example.prompt, text, example.fields)
            for example, text in zip(examples, texts, strict=True)
        ]
        scores: list[Score] = []
        for first in range(0, len(pairs), SCORED_AT_ONCE):
            between()
            scores += self.scorer.score(pairs[first : first + SCORED_AT_ONCE], between=between)
        bad = [
            (example, score.reason)
            for example, score in zip(examples, scores, strict=True)
            if score.reason is not None
        ]
        if bad:
            example, reason = bad[0]
            self.last_bad_reward = reason
            print(  # noqa: T201
                f"{len(bad)} of {len(pairs)} responses have no reward; the first: {reason}",
                file=sys.stderr,
            )
            if self.config.rl.on_bad_reward == "stop":
                raise RampcliError(
                    f"rl.reward={self.config.rl.reward} cannot score a response to"
                    f" {example.prompt[:LONGEST_SHOWN_PROMPT]!r}: {reason}",
                    keys=(RLConfig.reward, RLConfig.on_bad_reward),
                    remedy="another reward function, or rl.on_bad_reward=leave_out",
                )
        rewards = torch.tensor([score.reward for score in scores], dtype=torch.float64)
        return rewards.view(len(questions), generations)


def _widened(rows: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(rows, (0, width - rows.shape[1]))
