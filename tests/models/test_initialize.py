import pytest
import torch

from models.drawn import draw_decoder
from rampcli.models.decoder import Decoder
from rampcli.models.initialize import initial_rows, residual_init_std


def build(config, seed: int = 1) -> Decoder:
    return draw_decoder(config.model, 16, seed=seed)


@pytest.mark.parametrize("family", ["small_llama", "small_gpt"])
def test_initial_weights_depend_only_on_the_seed(family, request):
    config = request.getfixturevalue(family)
    first, again, other = build(config), build(config), build(config, seed=2)
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
    assert not torch.equal(first.embedding.weight, other.embedding.weight)


def test_adding_a_layer_does_not_change_the_others(small_llama):
    before = build(small_llama).state_dict()
    small_llama.model.num_layers = 3
    small_llama.model.init_std = 0.02
    after = build(small_llama).state_dict()
    assert torch.equal(
        before["layers.1.attention.query.weight"], after["layers.1.attention.query.weight"]
    )


def test_projections_into_the_residual_stream_start_with_a_smaller_standard_deviation(small_llama):
    small_llama.model.hidden_size = 256
    model = build(small_llama)
    assert model.layers["0"].attention.query.weight.std().item() == pytest.approx(0.02, rel=0.03)
    for projection in (model.layers["0"].attention.output, model.layers["1"].ffn.output):
        assert projection.weight.std().item() == pytest.approx(
            residual_init_std(small_llama.model), rel=0.03
        )
    assert model.output.weight.std().item() == pytest.approx(0.02, rel=0.03)


def test_norms_start_at_one_and_biases_at_zero(small_gpt):
    model = build(small_gpt)
    assert (
        initial_rows(model, "layers.0.attention_norm.weight", first=0, rows=32, seed=1).eq(1).all()
    )
    for name, value in model.named_parameters():
        if name.endswith("bias"):
            assert value.eq(0).all()


def test_initial_rows_are_the_same_however_ranks_divide_them(small_llama):
    model = build(small_llama)
    name = "layers.1.ffn.up.weight"
    whole = initial_rows(model, name, first=0, rows=48, seed=1)
    assert torch.equal(
        torch.cat(
            [
                initial_rows(model, name, first=first, rows=rows, seed=1)
                for first, rows in ((0, 5), (5, 43))
            ]
        ),
        whole,
    )
    assert len(whole.unique()) > 0.99 * whole.numel()
