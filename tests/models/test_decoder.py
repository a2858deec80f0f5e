import math

import pytest
import torch

from rampcli import llm
from rampcli.engine.build import fill_weights
from rampcli.models.decoder import Decoder, RotaryTable, rotate


@pytest.fixture(params=["small_llama", "small_gpt"])
def model(request) -> Decoder:
    config = request.getfixturevalue(request.param)
    model = Decoder(config.model, sequence_length=16)
    fill_weights(model, seed=1)
    return model


def test_a_token_sees_no_later_token(model):
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


def test_fresh_weights_know_nothing_so_the_loss_is_that_of_guessing(model):
    tokens = torch.randint(64, (8, 16), generator=torch.Generator().manual_seed(0))
    labels = torch.randint(64, (8, 16), generator=torch.Generator().manual_seed(1))
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
    assert loss.item() == pytest.approx(math.log(64), abs=0.1)


def test_rotation_keeps_lengths_and_depends_on_distance_alone():
    table = RotaryTable(head_size=8, base=10_000.0, sequence_length=12)
    table.fill()
    query, key = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    queries, keys = (rotate(vector.expand(1, 1, 12, 8), table(12))[0, 0] for vector in (query, key))
    torch.testing.assert_close(queries.norm(dim=-1), query.norm().expand(12))
    scores = queries @ keys.T
    for distance in range(11):
        diagonal = scores.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("recipe", "parameters"), [("llama3_8b", 8_030_261_248), ("llama3_tiny", 973_184)])
def test_a_recipe_has_its_published_number_of_parameters(recipe, parameters):
    config = getattr(llm, recipe).pretrain_recipe()
    with torch.device("meta"):
        model = Decoder(config.model, sequence_length=config.data.sequence_length)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_gpt3_5b_has_five_billion_parameters():
    config = llm.gpt3_5b.pretrain_recipe()
    with torch.device("meta"):
        model = Decoder(config.model, sequence_length=config.data.sequence_length)
    assert 4.9e9 < sum(parameter.numel() for parameter in model.parameters()) < 5.2e9
