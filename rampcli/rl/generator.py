"""Generates responses to prompts, and scores them."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rampcli.config.rl_checks import RESPONSE_KEY, SEQUENCE_KEY, max_response_tokens
from rampcli.config.schema import Config
from rampcli.data.examples import Example, Examples
from rampcli.data.order import SampleOrder
from rampcli.data.pairs import Prompts
from rampcli.errors import RampcliError, UsageError
from rampcli.models.decoder import Decoder
from rampcli.models.sampler import Responses, Sampling, sample_responses, stream_of
from rampcli.rl.rollout import Question, Rollout
from rampcli.rl.scorer import Scorer

Indices = NDArray[np.int64]
LONGEST_TEXT = 40_000
"""Characters of a text in a row, whose JSON has up to 12 bytes for each: see `MAX_ROW_BYTES`."""
MOST_SHOWN = 200
"""Characters of a prompt that an error shows."""


class Generator:
    """Generates and scores responses.

    Args:
        config: the configuration.
        data: prompts, and how they become tokens.
        scorer: scores responses.
    """

    def __init__(self, config: Config, data: Prompts, scorer: Scorer) -> None:
        self.config = config
        self.data = data
        self.scorer = scorer
        self.order = SampleOrder(windows=len(data.training), seed=config.seed)
        self.generations = config.rl.generations_per_prompt or 1
        self.sampling = Sampling(
            temperature=config.rl.temperature,
            top_k=config.rl.top_k,
            top_p=config.rl.top_p,
            max_tokens=max_response_tokens(config),
            stop=data.format.end,
            vocab_size=len(data.format.is_special),
        )

    def training_questions(self, samples: Indices) -> list[Question]:
        """Returns the prompts of some samples of the run."""
        return self.questions(self.data.training, self.order.windows_of(samples).tolist())

    def questions(self, examples: Examples, indices: Sequence[int]) -> list[Question]:
        """Returns prompts by the indices of their examples.

        Raises:
            UsageError: a prompt leaves no room for its response.
        """
        found = [examples[index] for index in indices]
        encoded = self.data.format.encode_prompts([example.prompt for example in found])
        most = self.config.data.sequence_length - self.sampling.max_tokens
        for index, tokens in zip(indices, encoded, strict=True):
            if not 1 <= len(tokens) <= most:
                raise _prompt_refused(examples.place(index), len(tokens), most, self.sampling)
        return [
            Question(index=index, tokens=tokens.tolist(), example=example)
            for index, tokens, example in zip(indices, encoded, found, strict=True)
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
    ) -> Rollout:
        """Returns scored responses to some prompts.

        Each pair has random numbers of its own: they depend on the seed, the step, the prompt and
        the number of the generation alone.

        Raises:
            RampcliError: a pair cannot be scored, and the run ends at such pairs.
        """
        began, generations = time.perf_counter(), generations or self.generations
        sampling = sampling or self.sampling
        indices = np.array([question.index for question in questions], dtype=np.int64)
        streams = stream_of(seed, step, indices[:, None], np.arange(generations)).ravel()
        responses = sample_responses(
            model,
            [question.tokens for question in questions],
            generations=generations,
            sampling=sampling,
            streams=streams,
        )
        rewards = self._score(questions, self.texts(responses), generations)
        return Rollout(
            prompts=[question.tokens for question in questions],
            tokens=_widened(responses.tokens, sampling.max_tokens),
            lengths=responses.lengths,
            log_probs=_widened(responses.log_probs, sampling.max_tokens),
            rewards=rewards,
            seconds=time.perf_counter() - began,
        )

    def empty_rollout(self, prompts: int, device: torch.device) -> Tensor:
        """Returns memory for the rollout of some prompts, as `Rollout.to_tensor` packs it."""
        shape = (prompts * self.generations, Rollout.columns(self.sampling.max_tokens))
        return torch.empty(shape, dtype=torch.float64, device=device)

    def texts(self, responses: Responses | Rollout) -> list[str]:
        """Returns responses as text."""
        rows = responses.tokens.tolist()
        lengths = responses.lengths.tolist()
        return [
            self.data.format.decode_response(row[:length])
            for row, length in zip(rows, lengths, strict=True)
        ]

    def _score(
        self, questions: Sequence[Question], texts: Sequence[str], generations: int
    ) -> Tensor:
        """Returns rewards, float64 [prompts, generations]."""
        examples = [question.example for question in questions for _ in range(generations)]
        scores = self.scorer.score(
            [
                (example.prompt, text, example.fields)
                for example, text in zip(examples, texts, strict=True)
            ]
        )
        for example, score in zip(examples, scores, strict=True):
            if score.reason is not None and self.config.rl.on_bad_reward == "stop":
                raise RampcliError(
                    f"rl.reward={self.config.rl.reward} cannot score a response to"
                    f" {example.prompt[:MOST_SHOWN]!r}: {score.reason}",
                    keys=("rl.reward", "rl.on_bad_reward"),
                    remedy="another reward function, or rl.on_bad_reward=leave_out",
                )
        rewards = torch.tensor([score.reward for score in scores], dtype=torch.float64)
        return rewards.view(len(questions), generations)


def describe_pair(example: Example, response: str, reward: float) -> Mapping[str, Any]:
    """Returns a pair as a row of responses.jsonl. Long texts are cut."""
    return {
        "prompt": example.prompt[:LONGEST_TEXT],
        "response": response[:LONGEST_TEXT],
        "reward": None if np.isnan(reward) else reward,
    }


def _prompt_refused(place: str, length: int, most: int, sampling: Sampling) -> UsageError:
    return UsageError(
        f"{place}: the prompt has {length} tokens; {SEQUENCE_KEY} and {RESPONSE_KEY}="
        f"{sampling.max_tokens} leave room for 1 to {most}",
        keys=(SEQUENCE_KEY, RESPONSE_KEY),
        remedy=f"{SEQUENCE_KEY}={length + sampling.max_tokens} or more, or a smaller {RESPONSE_KEY}"
        if length
        else "prompts that are not empty",
    )


def _widened(rows: Tensor, width: int) -> Tensor:
    """Returns rows with zeros behind them, [rows, width]."""
    return torch.nn.functional.pad(rows, (0, width - rows.shape[1]))
