"""Linear layers whose factors are rounded."""

import pytest
import torch
from torch import nn

from rampcli.models import linear
from rampcli.models.linear import round_factors

CPU = torch.device("cpu")


def layer_and_input(*, has_bias):
    torch.manual_seed(1)
    return nn.Linear(8, 6, bias=has_bias), torch.randn(2, 3, 8, requires_grad=True)


def results(layer, hidden):
    """Returns the output, and the gradients of a sum of its squares."""
    output = layer(hidden)
    gradients = torch.autograd.grad(output.square().sum(), [hidden, *layer.parameters()])
    return [output, *gradients]


@pytest.mark.parametrize("has_bias", [False, True])
def test_rounded_factors_change_output_and_gradients_by_their_rounding_only(monkeypatch, has_bias):
    monkeypatch.setattr(linear, "has_bf16_products", lambda: True)
    layer, hidden = layer_and_input(has_bias=has_bias)
    exact = results(layer, hidden)
    round_factors(layer, "medium", CPU)
    for ours, before in zip(results(layer, hidden), exact, strict=True):
        assert ours.dtype is torch.float32
        assert 0 < (ours - before).norm() < 0.01 * before.norm()


def test_a_product_whose_factors_and_result_need_no_rounding_is_exact(monkeypatch):
    monkeypatch.setattr(linear, "has_bf16_products", lambda: True)
    layer, hidden = layer_and_input(has_bias=False)
    with torch.no_grad():
        for factor in (layer.weight, hidden):
            factor.copy_((4 * factor).round())
    exact = results(layer, hidden)
    round_factors(layer, "medium", CPU)
    assert torch.equal(results(layer, hidden)[0], exact[0])


def test_a_processor_without_bf16_products_computes_as_before(monkeypatch):
    monkeypatch.setattr(linear, "has_bf16_products", lambda: False)
    layer, hidden = layer_and_input(has_bias=True)
    exact = results(layer, hidden)
    round_factors(layer, "medium", CPU)
    assert all(map(torch.equal, results(layer, hidden), exact))
