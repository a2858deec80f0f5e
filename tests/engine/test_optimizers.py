import pytest
import torch

from rampcli.config.choices import Optimizer
from rampcli.engine.optimizers import Muon, build_optimizers
from rampcli.models.decoder import Decoder


@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_weight_decay_touches_matrices_only_and_every_parameter_has_one_optimiser(small_gpt, optimizer):
    small_gpt.optim.optimizer = optimizer
    model = Decoder(small_gpt.model, sequence_length=16)
    decays = [
        (id(parameter), group["weight_decay"])
        for one in build_optimizers([model], small_gpt.optim)
        for group in one.param_groups
        for parameter in group["params"]
    ]
    assert len(decays) == len(list(model.parameters()))
    decay_of = dict(decays)
    for parameter in model.parameters():
        assert decay_of[id(parameter)] == (small_gpt.optim.weight_decay if parameter.ndim == 2 else 0.0)


def test_muon_has_the_matrices_of_the_layers_and_nothing_else(small_llama):
    small_llama.optim.optimizer = Optimizer.muon
    model = Decoder(small_llama.model, sequence_length=16)
    muon, _ = build_optimizers([model], small_llama.optim)
    names = {parameter: name for name, parameter in model.named_parameters()}
    of_muon = {names[parameter] for group in muon.param_groups for parameter in group["params"]}
    assert of_muon == {name for name in names.values() if name.startswith("layers.") and "norm" not in name}


def test_muon_takes_the_steps_of_torchs_muon():
    weights = [torch.nn.Parameter(torch.randn(12, 8, generator=torch.Generator().manual_seed(0))) for _ in range(2)]
    ours = Muon([weights[0]], lr=0.02, weight_decay=0.1, momentum=0.95)
    torchs = torch.optim.Muon([weights[1]], lr=0.02, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for seed in range(1, 4):
        for weight, optimizer in zip(weights, (ours, torchs), strict=True):
            weight.grad = torch.randn(12, 8, generator=torch.Generator().manual_seed(seed))
            optimizer.step()
    torch.testing.assert_close(weights[0], weights[1], atol=1e-7, rtol=1e-6)
