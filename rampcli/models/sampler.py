"""Draws responses to many prompts at once, each response from its own random numbers.

A response depends on the model, its prompt and its stream of random numbers. The other responses of
the batch change only the rounding of matrix products, about 1e-6 in a log-probability. That can
change a token whose random number is as close to the boundary between two tokens.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rampcli.batch.scrambling import hash_of, uniforms_of
from rampcli.errors import DamagedFileError
from rampcli.models.cache import Cache
from rampcli.models.decoder import Decoder

CHECK_EVERY = {"cpu": 1, "cuda": 16}
"""Tokens between two reads of what was drawn. A GPU has nothing to do during a read."""
PROMPT_TOKENS_AT_ONCE = 2048
"""Tokens of prompts per forward pass, at least one prompt.

More would not be faster: the hidden states no longer fit in a processor's cache.
"""
WORTH_DROPPING = 0.75
"""Drop ended responses once at most this share of the rows still runs.

Dropping them copies the cache. Keeping them costs forward passes.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How to draw tokens.

    Attributes:
        temperature: divides the logits. 0 always takes the likeliest token.
        top_k: draw from the `top_k` likeliest tokens, at least 1. None draws from all.
        top_p: draw from the nucleus, the fewest likeliest tokens whose probabilities add up to
            this, above 0 and up to 1 (Holtzman et al., arXiv 1904.09751). `top_k` is applied first,
            and the probabilities it keeps are renormalised. None draws from all.
        max_tokens: length of the longest response, in tokens, the stop token included.
        stops: tokens that end a response; one of them is its last token. Without any, responses end
            only at `max_tokens`.
        vocab_size: draw only tokens below this number. None draws from all.
    """

    temperature: float
    top_k: int | None = None
    top_p: float | None = None
    max_tokens: int
    stops: tuple[int, ...] = ()
    vocab_size: int | None = None


@dataclass(frozen=True, slots=True)
class NextTokens:
    """The next token of each running response.

    Attributes:
        pairs: int64 [rows], the pair of prompt and generation that each token belongs to.
        tokens: int64 [rows].
        log_probs: fp32 [rows], see `Responses`.
        has_ended: bool [rows], True if the response ended earlier. The token is then no part of it.
    """

    pairs: Tensor
    tokens: Tensor
    log_probs: Tensor
    has_ended: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Responses:
    """Responses in the order of their pairs: all generations of the first prompt come first.

    Attributes:
        tokens: int64 [pairs, longest], padded with 0 at the end.
        lengths: int64 [pairs], the stop token included.
        log_probs: fp32 [pairs, longest], natural logarithm of each token's probability when it was
            drawn, at the temperature (1 if it is 0), among all tokens of the model, as in training:
            `vocab_size`, `top_k` and `top_p` do not change it. Padded with 0 at the end.
    """

    tokens: Tensor
    lengths: Tensor
    log_probs: Tensor


def generate_tokens(
    model: Decoder, prompt: list[int], *, sampling: Sampling, seed: int = 0
) -> Iterator[int]:
    """Yields the tokens that follow a prompt, up to the first stop token.

    Args:
        model: decoder whose sequence length has room for the prompt and `sampling.max_tokens`.

    Raises:
        DamagedFileError: the logits are not finite.
    """
    streams = hash_of(seed, 0, [0], 0)
    drawn = sample_tokens(model, [prompt], generations=1, sampling=sampling, streams=streams)
    at_once = CHECK_EVERY[model.positions.device.type]
    while some := list(islice(drawn, at_once)):
        read = torch.cat([tensor for each in some for tensor in (each.tokens, each.has_ended)])
        for token, has_ended in read.view(-1, 2).tolist():
            if has_ended:
                return
            yield token


def sample_responses(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    *,
    generations: int,
    sampling: Sampling,
    streams: NDArray[np.uint64],
    between: Callable[[], None] = lambda: None,
) -> Responses:
    """Draws `generations` responses to each prompt.

    Takes the arguments of `sample_tokens` and raises its errors. Calls `between` after each token
    of the batch; an error from it passes through.
    """
    pairs, device = len(streams), model.positions.device
    tokens = torch.zeros(sampling.max_tokens, pairs, dtype=torch.int64, device=device)
    log_probs = torch.zeros(sampling.max_tokens, pairs, device=device)
    lengths = torch.zeros(pairs, dtype=torch.int64, device=device)
    drawn = sample_tokens(
        model, prompts, generations=generations, sampling=sampling, streams=streams
    )
    for index, following in enumerate(drawn):
        is_part = (~following.has_ended).long()
        tokens[index].index_copy_(0, following.pairs, following.tokens * is_part)
        log_probs[index].index_copy_(0, following.pairs, following.log_probs * is_part)
        lengths.index_add_(0, following.pairs, is_part)
        between()
    longest = int(lengths.max())
    return Responses(
        tokens=tokens[:longest].t().contiguous(),
        lengths=lengths,
        log_probs=log_probs[:longest].t().contiguous(),
    )


@torch.no_grad()
def sample_tokens(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    *,
    generations: int,
    sampling: Sampling,
    streams: NDArray[np.uint64],
) -> Iterator[NextTokens]:
    """Reads the prompts and returns an iterator over the next token of all responses.

    Each prompt goes through the model once for all of its generations. Then each token of a
    response costs the forward pass of one token.

    Args:
        model: whole decoder, whose sequence length has room for each prompt and `max_tokens`.
        prompts: at least one, of at least one token each; their lengths may differ.
        streams: stream of random numbers of each response, [prompts x generations], such as the
            hash of seed, step, prompt and generation. All generations of the first prompt come
            first.

    Raises:
        DamagedFileError: the logits are not finite. The iterator raises it.
        ValueError: `streams` has another length, or a prompt and `max_tokens` exceed the model's
            sequence length.
    """
    if len(streams) != len(prompts) * generations:
        raise ValueError(f"{len(streams)} streams for {len(prompts)} prompts x {generations}")
    cache, logits = _read_prompts(
        model, prompts, generations=generations, max_tokens=sampling.max_tokens
    )
    # All at once: a call for each token would cost more than the draw.
    uniforms = torch.from_numpy(uniforms_of(streams, np.arange(sampling.max_tokens)[:, None]))
    return _continue(model, cache, logits, sampling=sampling, uniforms=uniforms.to(logits.device))


@torch.no_grad()
def _continue(
    model: Decoder, cache: Cache, logits: Tensor, *, sampling: Sampling, uniforms: Tensor
) -> Iterator[NextTokens]:
    """Yields the next token of all responses, until all have ended.

    Args:
        cache: keys and values of the prompts, of each response.
        logits: those of the first token, [pairs, vocab_size].
        uniforms: random numbers of each token and response, float64 [max_tokens, pairs].
    """
    device, last = logits.device, sampling.max_tokens - 1
    pairs = torch.arange(len(logits), device=device)
    has_ended = torch.zeros(len(logits), dtype=torch.bool, device=device)
    total = torch.zeros((), device=device)
    for index in range(sampling.max_tokens):
        is_due = index % CHECK_EVERY[device.type] == 0 or index == last
        logits = logits.float()
        total += logits.sum()
        if is_due and not math.isfinite(total):
            raise DamagedFileError(
                "the model's logits are not finite: its training has diverged, or its weights are"
                " damaged"
            )
        tokens, log_probs = draw(logits, sampling, uniforms[index])
        yield NextTokens(pairs, tokens, log_probs, has_ended)
        if index == last:
            return
        if sampling.stops:
            for stop in sampling.stops:
                has_ended = has_ended | (tokens == stop)
            if is_due and (rows := _rows_to_keep(has_ended)) is not None:
                if len(rows) == 0:
                    return
                cache.keep(rows)
                pairs, tokens, has_ended = pairs[rows], tokens[rows], has_ended[rows]
                uniforms = uniforms[:, rows]
        logits = model(tokens[:, None], cache=cache)[:, -1]


def _rows_to_keep(has_ended: Tensor) -> Tensor | None:
    """Returns the rows of running responses, or None if too few have ended to be worth dropping."""
    running = (~has_ended).nonzero()[:, 0]
    return running if len(running) <= WORTH_DROPPING * len(has_ended) else None


def _read_prompts(
    model: Decoder, prompts: Sequence[Sequence[int]], *, generations: int, max_tokens: int
) -> tuple[Cache, Tensor]:
    """Returns the cache and the logits of the next token of each response, [pairs, vocab_size]."""
    device = model.positions.device
    lengths = [len(prompt) for prompt in prompts]
    longest = max(lengths)
    if longest + max_tokens > len(model.positions):
        raise ValueError(
            f"a prompt of {longest} tokens and {max_tokens} new tokens exceed the model's"
            f" {len(model.positions)} positions"
        )
    pads = [longest - length for length in lengths]
    tokens = torch.tensor(
        [[0] * count + list(prompt) for count, prompt in zip(pads, prompts, strict=True)],
        device=device,
    )
    starts, rows = torch.tensor(pads, device=device), max(1, PROMPT_TOKENS_AT_ONCE // longest)
    parts, logits = [], []
    for some, starts_of_some in zip(
        torch.split(tokens, rows), torch.split(starts, rows), strict=True
    ):
        part = Cache(capacity=longest, pads=starts_of_some if any(pads) else None)
        logits.append(model(some, cache=part)[:, -1])
        parts.append(part)
    # The last token that is drawn does not go through the model.
    cache = Cache.joined(parts, copies=generations, capacity=longest + max_tokens - 1)
    return cache, torch.cat(logits).repeat_interleave(generations, dim=0)


def draw(logits: Tensor, sampling: Sampling, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Returns tokens, int64 [rows], and their log-probabilities, fp32 [rows].

    Args:
        logits: fp32 [rows, vocabulary].
        uniforms: numbers from 0 up to but not including 1, float64 [rows].
    """
    temperature = sampling.temperature or 1
    others = logits[:, logits.shape[1] if sampling.vocab_size is None else sampling.vocab_size :]
    logits = logits[:, : sampling.vocab_size]
    highest = logits.amax(dim=1, keepdim=True)
    weights = (logits - highest).div_(temperature).exp_()
    sums = weights.cumsum(dim=1, dtype=torch.float64)
    log_total = sums[:, -1].log()
    if others.numel():  # they may lie so far above the highest that their exponentials overflow
        log_of_others = (others - highest).div_(temperature).double().logsumexp(dim=1)
        log_total = log_total.logaddexp(log_of_others)
    if sampling.temperature == 0:
        tokens = logits.argmax(dim=1)
    else:
        if sampling.top_k is not None or sampling.top_p is not None:
            sums = _truncate(weights, sampling).cumsum(dim=1, dtype=torch.float64)
        # The first token whose sum exceeds the random share of the total. Its weight is not 0.
        tokens = torch.searchsorted(sums, uniforms[:, None] * sums[:, -1:], right=True)[:, 0]
        # The sums of logits that are not finite have no such token. They are reported later.
        tokens = tokens.clamp(max=logits.shape[1] - 1)
    drawn = (logits.gather(1, tokens[:, None]) - highest)[:, 0]
    return tokens, (drawn / temperature - log_total).float()


def _truncate(weights: Tensor, sampling: Sampling) -> Tensor:
    """Returns weights [rows, vocabulary] in which those outside top-k and the nucleus are 0.

    Tokens that are equally likely are kept or dropped together.
    """
    if sampling.top_k is not None:
        likeliest = weights.topk(min(sampling.top_k, weights.shape[1]), dim=1).values
    elif weights.device.type == "cpu":  # numpy sorts many times faster than torch
        likeliest = torch.from_numpy(np.sort(weights.numpy(), axis=1)).flip(1)
    else:
        likeliest = weights.sort(dim=1, descending=True).values
    smallest = likeliest[:, -1:]
    if sampling.top_p is not None:
        sums = likeliest.cumsum(dim=1, dtype=torch.float64)
        is_outside = sums - likeliest >= sampling.top_p * sums[:, -1:]
        smallest = likeliest.masked_fill(is_outside, torch.inf).amin(dim=1, keepdim=True)
    return weights.masked_fill(weights < smallest, 0)
