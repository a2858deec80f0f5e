"""A decoder with a cache gives the logits of the full forward pass."""

import pytest
import torch

from models.drawn import draw_decoder
from models.families import FAMILIES
from rampcli.models.attention import Attention
from rampcli.models.cache import Cache, SharedPrompts

LENGTH = 16
PADS = torch.tensor([0, 5, 2])
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


@pytest.fixture(params=FAMILIES, scope="module")
def model(request):
    return draw_decoder(FAMILIES[request.param], LENGTH).requires_grad_(requires_grad=False)


def tokens_of(rows: int) -> torch.Tensor:
    return torch.randint(128, (rows, LENGTH), generator=torch.Generator().manual_seed(4))


def full(model, tokens, pads):
    """Logits of the full forward pass over each row without its pads, in the rows' columns."""
    logits = torch.full((*tokens.shape, 128), torch.nan)
    for row, pad in enumerate(pads.tolist()):
        logits[row, pad:] = model(tokens[row : row + 1, pad:])[0]
    return logits


def test_the_last_token_of_each_piece_has_the_logits_of_the_full_forward_pass(model):
    tokens, cache = tokens_of(3), Cache(capacity=LENGTH)
    expected = model(tokens)
    for first, end in ((0, 7), (7, 8), (8, 9), (9, 14), (14, 16)):
        logits = model(tokens[:, first:end], cache=cache)
        torch.testing.assert_close(logits, expected[:, end - 1 : end], **CLOSE)
    assert cache.length == LENGTH


def test_rows_with_pads_have_the_logits_of_the_rows_without_them(model):
    tokens, cache = tokens_of(3), Cache(capacity=LENGTH, pads=PADS)
    expected = full(model, tokens, PADS)
    for first, end in ((0, 6), (6, 7), (7, 8), (8, 11), (11, 12), (12, 13)):
        logits = model(tokens[:, first:end], cache=cache)
        torch.testing.assert_close(logits, expected[:, end - 1 : end], **CLOSE)


@pytest.mark.parametrize("pads", [PADS, torch.zeros_like(PADS)])
def test_joined_and_kept_rows_continue_as_if_they_had_been_read_alone(model, pads):
    prompts, rows = tokens_of(3), torch.tensor([0, 1, 3, 5])
    continued = torch.cat([prompts[:, :8].repeat_interleave(2, dim=0), tokens_of(6)[:, 8:]], dim=1)
    expected = full(model, continued, pads.repeat_interleave(2))
    parts = []
    for part in (slice(0, 2), slice(2, 3)):
        parts.append(Cache(capacity=8, pads=pads[part] if pads.any() else None))
        model(prompts[part, :8], cache=parts[-1])
    cache = Cache.joined(parts, copies=2, capacity=LENGTH)
    assert not any(part.layers for part in parts)
    logits = [model(continued[:, column : column + 1], cache=cache)[:, 0] for column in (8, 9)]
    torch.testing.assert_close(torch.stack(logits, dim=1), expected[:, 8:10], **CLOSE)
    cache.keep(rows)
    logits = [
        model(continued[rows, column : column + 1], cache=cache)[:, 0]
        for column in range(10, LENGTH - 1)
    ]
    torch.testing.assert_close(torch.stack(logits, dim=1), expected[rows, 10:-1], **CLOSE)
    cache.keep(torch.tensor([2]))  # a single row, with pads
    logits = model(continued[rows[2:3], -1:], cache=cache)
    torch.testing.assert_close(logits, expected[rows[2:3], -1:], **CLOSE)


def test_rows_of_a_prompt_hold_its_keys_and_values_once(model):
    part = Cache(capacity=8)
    model(tokens_of(3)[:, :8], cache=part)
    cache = Cache.joined([part], copies=4, capacity=LENGTH)
    model(tokens_of(12)[:, :1], cache=cache)
    for layer in cache.layers.values():
        assert (layer.prompts.shape[1], layer.prompts.shape[3]) == (3, 8)
        assert (layer.memory.shape[1], layer.memory.shape[3]) == (12, LENGTH - 8)
    cache.keep(torch.tensor([0, 2, 9]))
    assert {layer.prompts.shape[1] for layer in cache.layers.values()} == {2}


def test_scores_of_shared_prompts_are_not_rounded_to_bf16():
    """Rounded scores would move the probabilities of a rollout away from those of training."""
    attention, draw = Attention(FAMILIES["llama3"]), torch.Generator().manual_seed(0)
    query, key, value = (
        8 * torch.randn(64, heads, tokens, 16, generator=draw, dtype=torch.bfloat16)
        for heads, tokens in ((4, 1), (2, LENGTH), (2, LENGTH))
    )
    exact = attention.core(query.float(), key.float(), value.float())
    cache = Cache(capacity=LENGTH)
    layer = cache.layer("0")
    layer.prompts = torch.stack([key, value])[:, :, :, :-1]
    cache.shared = SharedPrompts(LENGTH - 1, 64, 1, torch.arange(64))
    shared = attention._attend_with_prompts(query, key[:, :, -1:], value[:, :, -1:], None, layer)
    error, alone = (each.float() - exact for each in (shared, attention.core(query, key, value)))
    assert error.abs().mean() < 1.5 * alone.abs().mean()


def test_a_token_is_added_in_place():
    model = draw_decoder(FAMILIES["llama3"], LENGTH)
    tokens, cache = tokens_of(3), Cache(capacity=LENGTH)
    with torch.no_grad():
        model(tokens[:, :5], cache=cache)
        before = {name: layer.memory for name, layer in cache.layers.items()}
        read = {name: memory[:, :, :, :5].clone() for name, memory in before.items()}
        model(tokens[:, 5:6], cache=cache)
    assert len(before) == 2
    for name, memory in before.items():
        assert cache.layers[name].memory is memory
        assert torch.equal(memory[:, :, :, :5], read[name])
