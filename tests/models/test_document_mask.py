"""With document positions, packed documents give the same result as each document on its own."""

from itertools import pairwise

import pytest
import torch

from models.drawn import draw_decoder
from models.families import FAMILIES
from rampcli.models.attention import CausalAttention
from rampcli.models.masks import build_mask
from rampcli.settings.model import ModelConfig
from rampcli.train.build import recompute_activations

LENGTH = 24
PACKED = [[0, 9, 10, 21], [0, 3, 4, 5], [0]]
"""Document starts in each sequence. Some documents are one token, some exceed Mistral's window."""
CLOSE = {"atol": 2e-5, "rtol": 1e-4}


@pytest.fixture(params=FAMILIES, scope="module")
def model(request):
    return decoder(request.param)


def decoder(family, layers=None):
    return draw_decoder(FAMILIES[family], LENGTH, layers=layers)


def tokens_of(rows):
    return torch.randint(128, (rows, LENGTH), generator=torch.Generator().manual_seed(4))


def places():
    positions = torch.arange(LENGTH).repeat(len(PACKED), 1)
    for row, starts in zip(positions, PACKED, strict=True):
        for start in starts:
            row[start:] = torch.arange(LENGTH - start)
    return positions


@torch.no_grad()
def test_packed_documents_give_the_same_logits_as_separate_ones(model):
    tokens = tokens_of(len(PACKED))
    packed = model(tokens, places())
    for row, starts in enumerate(PACKED):
        for start, end in pairwise([*starts, LENGTH]):
            torch.testing.assert_close(
                packed[row, start:end], model(tokens[row : row + 1, start:end])[0], **CLOSE
            )


@torch.no_grad()
def test_without_the_mask_the_second_document_sees_the_first(model):
    tokens, masked = tokens_of(len(PACKED)), places()
    packed, unmasked = model(tokens, masked), model(tokens)
    torch.testing.assert_close(packed[0, :9], unmasked[0, :9], **CLOSE)
    assert not torch.allclose(packed[0, 10:14], unmasked[0, 10:14], atol=1e-2)


@torch.no_grad()
def test_a_document_is_independent_of_its_neighbours_in_the_sequence(model):
    tokens = tokens_of(1)
    changed = tokens.clone()
    changed[0, :9], changed[0, 21:] = (tokens[0, :9] + 1) % 128, (tokens[0, 21:] + 1) % 128
    before, after = (model(each, places()[:1])[0] for each in (tokens, changed))
    assert torch.equal(before[9:21], after[9:21])
    assert not torch.allclose(before[:9], after[:9], atol=1e-2)


@torch.no_grad()
def test_the_mask_changes_nothing_for_a_sequence_of_one_document(model):
    tokens, one = tokens_of(2), torch.arange(LENGTH)
    assert torch.equal(model(tokens), model(tokens, one))
    torch.testing.assert_close(model(tokens, one.repeat(2, 1)), model(tokens), **CLOSE)
    torch.testing.assert_close(
        model(tokens[:, :11], one[:11].repeat(2, 1)), model(tokens[:, :11]), **CLOSE
    )


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama3", "mistral", "gpt3"])
def test_pipeline_stages_in_sequence_equal_the_model_with_a_document_mask(family):
    first, last = (decoder(family, layers) for layers in (range(1), range(1, 2)))
    tokens = tokens_of(len(PACKED))
    assert torch.equal(last(first(tokens, places()), places()), decoder(family)(tokens, places()))


@pytest.mark.parametrize("sliding_window", [None, 5])
def test_each_query_attends_to_its_own_document_up_to_itself(sliding_window):
    alike = torch.zeros(len(PACKED), 1, LENGTH, LENGTH)
    mask = build_mask(
        places(),
        queries=LENGTH,
        sequence=LENGTH,
        model=ModelConfig(sliding_window=sliding_window),
        like=alike,
    )
    core = CausalAttention(sliding_window=sliding_window)
    shares = core(alike, alike, torch.eye(LENGTH).expand_as(alike), mask)
    for row, starts in enumerate(PACKED):
        for query in range(LENGTH):
            start = max(start for start in starts if start <= query)
            seen = range(max(start, query + 1 - (sliding_window or LENGTH)), query + 1)
            assert shares[row, 0, query].nonzero().ravel().tolist() == list(seen)


@pytest.mark.parametrize("family", ["llama3", "mistral"])
@pytest.mark.parametrize("mode", ["none", "full"])
def test_all_layers_share_one_mask_also_when_they_are_recomputed(family, mode, monkeypatch):
    model, seen, attend = decoder(family), [], CausalAttention.forward

    def note(core, query, key, value, mask):
        seen.append(mask)
        return attend(core, query, key, value, mask)

    monkeypatch.setattr(CausalAttention, "forward", note)
    recompute_activations(model.layers.values(), mode)
    model(tokens_of(len(PACKED)), places()).sum().backward()
    assert len(seen) == len(model.layers) * (1 if mode == "none" else 2)
    assert seen[0].shape == (len(PACKED), LENGTH)
    assert all(mask is seen[0] for mask in seen)
