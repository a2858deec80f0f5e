import pytest
import torch
from torch import nn

from rampcli.batch.averages import ExponentialMean
from rampcli.train.average import WeightAverage


@pytest.fixture
def layer():
    return nn.Linear(3, 2)


def test_a_step_moves_the_average_by_its_share_of_the_difference_and_leaves_the_weights(layer):
    average = WeightAverage([layer])
    with torch.no_grad():
        before = layer.weight.clone()
        layer.weight += 1.0
    average.move(0.25)
    torch.testing.assert_close(average.values[layer.weight], before + 0.25)
    torch.testing.assert_close(layer.weight.detach(), before + 1.0)
    assert torch.equal(average.values[layer.bias], layer.bias)


def test_the_average_takes_the_place_of_the_weights_bit_for_bit_and_gives_it_back(layer):
    average = WeightAverage([layer])
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.0, -0.0, 1e-42], [torch.nan, torch.inf, 1 / 3]]))
    average.move(0.3)
    before = [tensor.clone() for tensor in (layer.weight, average.values[layer.weight])]

    def bits(*tensors):
        return [tensor.detach().view(torch.int32).tolist() for tensor in tensors]

    def stop():
        assert bits(average.values[layer.weight], layer.weight) == bits(*before)
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"), average.in_place_of_weights():
        stop()
    assert bits(layer.weight, average.values[layer.weight]) == bits(*before)


def test_an_average_without_a_value_takes_that_of_the_weights(layer):
    average = WeightAverage([layer])
    for value in average.values.values():
        value.fill_(torch.nan)
    average.move(1.0)
    assert all(torch.equal(value, weight) for weight, value in average.values.items())


@pytest.mark.parametrize("batches", [[64] * 16, [1024], [32] * 8 + [128] * 6])
def test_an_average_in_fp32_is_half_way_to_fixed_weights_after_a_half_life(layer, batches):
    average = WeightAverage([layer], ExponentialMean(half_life_tokens=1024))
    with torch.no_grad():
        before = layer.weight.clone()
        layer.weight += 1.0
    for tokens in batches:
        average.follow(0, tokens)
    torch.testing.assert_close(average.values[layer.weight], before + 0.5)


def test_an_average_is_in_fp32_whatever_the_weights_are(layer):
    (value, *_) = WeightAverage([layer.bfloat16()]).values.values()
    assert value.dtype is torch.float32
