"""Masks of flex attention, whose kernels need a GPU. Without one, torch computes all scores."""

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from rampcli.models import masks
from rampcli.models.masks import BLOCK, attend_to_blocks, block_mask
from rampcli.models.tiles import attend_in_tiles


def documents(sequence: int) -> torch.Tensor:
    """Returns the first keys of two samples of documents, int32 [2, sequence]."""
    starts = torch.zeros(2, sequence, dtype=torch.int32)
    for row, cuts in enumerate([[0, 5, BLOCK, 2 * BLOCK + 9], [0, 2 * BLOCK - 1]]):
        for cut in cuts:
            starts[row, cut:] = cut
    return starts


def window(sequence: int, size: int) -> torch.Tensor:
    return (torch.arange(sequence) - size + 1).clamp(min=0)[None].int()


CASES = {
    "documents": (documents(3 * BLOCK), 3 * BLOCK),
    "a last block that is not full": (documents(3 * BLOCK - 50), 3 * BLOCK - 50),
    "a window": (window(4 * BLOCK, 200), 4 * BLOCK),
    "documents and a window": (documents(400).maximum(window(400, 150)), 400),
    "the last queries": (documents(4 * BLOCK)[:, -2 * BLOCK :], 4 * BLOCK),
    "the last queries, blocks not full": (documents(450)[:, -100:], 450),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def blocks_of(mask: BlockMask, kind: str, rows: int) -> list[list[int]]:
    """Returns the blocks of each block, for `rows` samples one after the other."""
    counts, indices = (
        getattr(mask, f"{kind}_{name}").expand(rows, -1, *rest).flatten(0, 2)
        for name, rest in (("num_blocks", [-1]), ("indices", [-1, -1]))
    )
    return [sorted(row[:count].tolist()) for row, count in zip(indices, counts, strict=True)]


def test_blocks_are_those_that_torch_finds_by_looking_at_every_pair(case):
    first, sequence = case
    mask = block_mask(first, sequence)
    expected = create_block_mask(
        mask.mask_mod, len(first), None, first.shape[1], sequence, device="cpu", BLOCK_SIZE=BLOCK
    )
    for kind in ("kv", "full_kv", "q", "full_q"):
        found, right = (blocks_of(each, kind, len(first)) for each in (mask, expected))
        assert found == right, kind
    assert mask.seq_lengths == expected.seq_lengths


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_attention_is_that_of_tiles(case, monkeypatch):
    monkeypatch.setattr(masks, "compiled_attention", lambda: flex_attention)
    first, sequence = case
    draw = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, first.shape[1], 16, generator=draw)
    key, value = torch.randn(2, 2, 2, sequence, 16, generator=draw)
    mixed = attend_to_blocks(query, key, value, block_mask(first, sequence))
    torch.testing.assert_close(mixed, attend_in_tiles(query, key, value, first)[0])


def test_few_queries_take_the_kernel_that_knows_blocks(monkeypatch):
    """For fewer queries than a block has, torch prefers one that cannot be compiled for blocks."""
    monkeypatch.setattr(masks, "compiled_attention", lambda: lambda *_, **options: options)
    first = documents(100)
    query, key = torch.zeros(2, 8, 100, 16), torch.zeros(2, 2, 100, 16)
    options = attend_to_blocks(query, key, key, block_mask(first, 100))
    assert options["kernel_options"] == {"BACKEND": "TRITON"}
    assert options["enable_gqa"]
