"""A rollout: responses to the prompts of a micro batch, with their rewards."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rampcli.data.examples import Example
from rampcli.models.sampler import Responses


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
