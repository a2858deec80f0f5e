import math

import pytest
import torch

from models.drawn import draw_decoder
from rampcli.models.attention import CausalAttention, RotaryTable, frequencies, rotate
from rampcli.models.decoder import Decoder
from rampcli.models.masks import build_mask
from rampcli.settings.model import ModelConfig


@pytest.fixture(params=["small_llama", "small_gpt"])
def model(request) -> Decoder:
    return draw_decoder(request.getfixturevalue(request.param).model, 16)


def test_a_token_attends_to_no_later_token(model):
    tokens = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[:, 9:] = (changed[:, 9:] + 1) % 64
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


def test_a_shorter_sequence_gives_the_same_logits(model):
    tokens = torch.randint(64, (1, 16), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model(tokens)[:, :7], model(tokens[:, :7]))


def test_the_order_of_earlier_tokens_matters(model):
    tokens = torch.arange(16)[None]
    swapped = tokens.clone()
    swapped[0, [2, 5]] = swapped[0, [5, 2]]
    assert not torch.allclose(model(tokens)[:, -1], model(swapped)[:, -1], atol=1e-7)


def test_the_loss_of_initial_weights_is_that_of_uniform_guessing(model):
    tokens = torch.randint(64, (8, 16), generator=torch.Generator().manual_seed(0))
    labels = torch.randint(64, (8, 16), generator=torch.Generator().manual_seed(1))
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
    assert loss.item() == pytest.approx(math.log(64), abs=0.1)


def test_rotary_embedding_keeps_norms_and_depends_only_on_distance():
    table = RotaryTable(ModelConfig(head_size=8), sequence_length=12)
    table.fill()
    query, key = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    queries, keys = (
        rotate(vector.expand(1, 1, 12, 8), table(torch.arange(12)))[0, 0] for vector in (query, key)
    )
    torch.testing.assert_close(queries.norm(dim=-1), query.norm().expand(12))
    scores = queries @ keys.T
    for distance in range(11):
        diagonal = scores.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-5, rtol=1e-5)


def test_far_positions_are_rotated_as_exactly_in_bf16_as_near_ones():
    """Their cosines are rounded, not their angles, which would lose their digits in bf16."""
    model = ModelConfig(hidden_size=128, num_attention_heads=1, rotary_base=500_000.0)
    states = torch.randn(2, 1, 8, 128, 128, generator=torch.Generator().manual_seed(0)).bfloat16()

    def scores(first, dtype):
        angles = torch.outer(torch.arange(first, first + 128).double(), frequencies(model))
        rotation = torch.stack([angles.cos(), angles.sin()]).repeat(1, 1, 2).to(dtype)
        query, key = (rotate(each.to(dtype), rotation).double() for each in states)
        return query @ key.mT / 128**0.5

    def error(first):
        return (scores(first, torch.bfloat16) - scores(first, torch.float64)).square().mean().sqrt()

    assert error(131_072) < 1.5 * error(1) < 0.01


def test_rotary_scaling_keeps_high_frequencies_slows_low_ones_and_blends_between():
    model = ModelConfig(head_size=64, rotary_base=500_000.0)
    plain = frequencies(model)
    model.rotary_scale_factor, model.rotary_original_length = 8.0, 8192
    scaled = frequencies(model)
    turns = 8192 * plain / (2 * math.pi)
    assert torch.equal(scaled[turns > 4], plain[turns > 4])
    torch.testing.assert_close(scaled[turns < 1], plain[turns < 1] / 8)
    between = (turns > 1) & (turns < 4)
    assert between.any()
    assert ((scaled < plain) & (scaled > plain / 8))[between].all()


def attended(query, key, value, *, sliding_window=None, document_positions=None):
    """Returns attention of queries, which are the last ones, with the mask of a forward pass."""
    mask = build_mask(
        document_positions,
        queries=query.shape[2],
        sequence=key.shape[2],
        model=ModelConfig(sliding_window=sliding_window),
        like=query,
    )
    return CausalAttention(sliding_window=sliding_window)(query, key, value, mask)


def test_a_sliding_window_hides_tokens_further_back():
    query, key, value = torch.randn(3, 1, 2, 12, 8, generator=torch.Generator().manual_seed(0))
    whole = attended(query, key, value, sliding_window=4)
    torch.testing.assert_close(
        whole[:, :, 9:10], attended(query[:, :, 9:10], key[:, :, 6:10], value[:, :, 6:10])
    )
    torch.testing.assert_close(
        whole[:, :, :4], attended(query[:, :, :4], key[:, :, :4], value[:, :, :4])
    )


@pytest.mark.parametrize("sliding_window", [None, 5])
def test_attention_of_the_last_queries_equals_that_of_all_queries(sliding_window):
    query, key, value = torch.randn(3, 2, 4, 12, 8, generator=torch.Generator().manual_seed(0))
    key, value = key[:, ::2], value[:, ::2]
    whole = attended(query, key, value, sliding_window=sliding_window)
    for some in (1, 5):
        last = attended(query[:, :, -some:], key, value, sliding_window=sliding_window)
        torch.testing.assert_close(last, whole[:, :, -some:])


def test_without_a_mask_the_last_queries_attend_to_all_tokens_up_to_themselves():
    """This is how a GPU computes the pieces of a context-parallel rank."""
    query, key, value = torch.randn(3, 2, 4, 12, 8, generator=torch.Generator().manual_seed(0))
    core = CausalAttention(sliding_window=None)
    last = core(query[:, :, -5:], key[:, ::2], value[:, ::2])
    torch.testing.assert_close(last, core(query, key[:, ::2], value[:, ::2])[:, :, -5:])


def test_pipeline_stages_in_sequence_equal_the_model(model):
    parts = [draw_decoder(model.model, 16, layers=layers) for layers in (range(1), range(1, 2))]
    tokens = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(0))
    assert torch.equal(parts[1](parts[0](tokens)), model(tokens))
    names = [name for part in parts for name in part.stage_parameters()]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
