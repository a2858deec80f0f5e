"""Attention in tiles equals attention with a mask of the whole sequence, which it never makes."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rampcli.models.tiles import LONGEST_TILE, SHORTEST_TILE, attend_in_tiles, tiles

HEADS, GROUPS, SIZE = 4, 2, 8


@st.composite
def first_keys(draw) -> tuple[Tensor, int]:
    """Returns the first keys of the last queries of packed documents, and the sequence's length."""
    sequence = draw(st.integers(1, 6 * SHORTEST_TILE))
    queries = draw(st.integers(1, sequence)) if draw(st.booleans()) else sequence
    window = draw(st.integers(1, sequence))
    rows = []
    for _ in range(draw(st.sampled_from([1, 2]))):
        cuts = draw(st.lists(st.integers(0, sequence - 1), max_size=6))
        starts = torch.zeros(sequence, dtype=torch.int32)
        starts[cuts] = torch.tensor(cuts, dtype=torch.int32)
        rows.append(starts.cummax(dim=0).values)
    last = (torch.arange(sequence) - window + 1).int()
    return torch.stack(rows).maximum(last)[:, sequence - queries :], sequence


def hidden(first: Tensor, sequence: int) -> Tensor:
    """Returns which keys each query does not attend to, [rows, 1, queries, sequence]."""
    keys = torch.arange(sequence)
    own = keys[sequence - first.shape[1] :, None]
    return (keys > own) | (keys < first[:, None, :, None])


def inputs(first: Tensor, sequence: int, *, batch: int = 2) -> list[Tensor]:
    """Returns queries, keys and values in the layout of the projections, [batch, tokens, heads]."""
    draw = torch.Generator().manual_seed(0)
    shapes = [(first.shape[1], HEADS), (sequence, GROUPS), (sequence, GROUPS)]
    return [
        torch.randn(batch, tokens, heads, SIZE, generator=draw).transpose(1, 2).requires_grad_()
        for tokens, heads in shapes
    ]


@given(first_keys())
def test_values_and_gradients_equal_those_of_a_dense_mask(case):
    first, sequence = case
    query, key, value = inputs(first, sequence)
    mask = torch.zeros(hidden(first, sequence).shape).masked_fill(
        hidden(first, sequence), float("-inf")
    )
    expected = F.scaled_dot_product_attention(
        query, key.repeat_interleave(2, dim=1), value.repeat_interleave(2, dim=1), attn_mask=mask
    )
    mixed, _ = attend_in_tiles(query, key, value, first)
    torch.testing.assert_close(mixed, expected)
    weights = torch.arange(expected.numel()).view(expected.shape).cos()
    for found, right in zip(
        torch.autograd.grad(mixed, (query, key, value), weights),
        torch.autograd.grad(expected, (query, key, value), weights),
        strict=True,
    ):
        torch.testing.assert_close(found, right, atol=1e-5, rtol=1e-4)


@given(first_keys())
def test_tiles_have_each_query_once_and_all_its_keys_and_small_masks(case):
    first, sequence = case
    like, expected = torch.zeros(()), ~hidden(first, sequence)
    seen = torch.zeros_like(expected, dtype=torch.int32)
    for samples, rows, keys, mask in tiles(first, sequence, like=like):
        shape = (rows.stop - rows.start, keys.stop - keys.start)
        causal = torch.ones(shape, dtype=torch.bool).tril()
        seen[samples, :, rows, keys] += causal if mask is None else mask == 0
        assert mask is None or shape[0] <= LONGEST_TILE
        assert mask is None or shape[0] <= max(SHORTEST_TILE, shape[1] // 8)
    assert torch.equal(seen, expected.int())


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_compiled_and_eager_attention_have_equal_results(precision):
    torch.compiler.reset()
    first = torch.tensor([[0] * 70 + [70] * 20 + [90] * 10], dtype=torch.int32)
    query, key, value = (each.to(precision) for each in inputs(first, 100))

    def gradients(attend):
        return torch.autograd.grad(attend(query, key, value, first)[0].sum(), (query, key, value))

    compiled = torch.compile(attend_in_tiles, backend="aot_eager", fullgraph=True)
    for found, right in zip(gradients(compiled), gradients(attend_in_tiles), strict=True):
        assert torch.equal(found, right)


def test_a_long_window_needs_no_mask_of_the_whole_sequence():
    first = (torch.arange(2**14) - 2**12).clamp(min=0)[None].int()
    largest = max(
        mask.numel()
        for *_, mask in tiles(first, first.shape[1], like=torch.zeros(()))
        if mask is not None
    )
    assert largest <= 2 * LONGEST_TILE * 2**12
