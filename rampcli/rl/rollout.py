"""A rollout: responses to the prompts of a micro batch, with their rewards."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rampcli.data.examples import Example


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """Responses to the prompts of a micro batch, with their rewards.

    The pairs of a prompt are adjacent.

    Attributes:
        prompts: tokens of each prompt.
        tokens: int64 [pairs, max_response_tokens], padded with 0.
        lengths: int64 [pairs], tokens of each response, its end included.
        log_probs: fp32 [pairs, max_response_tokens], of the tokens when they were drawn.
        rewards: float64 [prompts, generations]; NaN for a pair that could not be scored.
        seconds: time that it took to generate and to score.
    """

    prompts: Sequence[Sequence[int]]
    tokens: Tensor
    lengths: Tensor
    log_probs: Tensor
    rewards: Tensor
    seconds: float

    def to_tensor(self) -> Tensor:
        """Returns everything but the prompts as float64 [pairs, 2 x max_response_tokens + 3]."""
        seconds = torch.full_like(self.lengths, self.seconds, dtype=torch.float64)
        columns = (self.lengths.double(), self.rewards.flatten().to(seconds), seconds)
        return torch.cat(
            [self.tokens.double(), self.log_probs.double(), torch.stack(columns, dim=1)], dim=1
        )

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
            tokens=tokens.long(),
            lengths=rest[:, 0].long(),
            log_probs=log_probs.float(),
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
