import torch

from rampcli.engine.build import build_optimizer
from rampcli.models.decoder import Decoder


def test_weight_decay_touches_matrices_only(small_gpt):
    model = Decoder(small_gpt.model, sequence_length=16)
    decay_of = {
        id(parameter): group["weight_decay"]
        for group in build_optimizer(model, small_gpt.optim).param_groups
        for parameter in group["params"]
    }
    assert len(decay_of) == len(list(model.parameters()))
    for parameter in model.parameters():
        assert decay_of[id(parameter)] == (small_gpt.optim.weight_decay if parameter.ndim == 2 else 0.0)


def test_a_model_is_described_before_it_is_given_memory(small_llama):
    with torch.device("meta"):
        model = Decoder(small_llama.model, sequence_length=16)
    assert all(parameter.is_meta for parameter in model.parameters())
