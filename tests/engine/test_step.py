import pytest
import torch
import torch.nn.functional as F

from rampcli.data.corpus import IGNORED
from rampcli.data.loader import MicroBatch, RankBatch
from rampcli.engine.build import build_optimizer, fill_weights
from rampcli.engine.step import clip_gradients, train_step, validate
from rampcli.models.decoder import Decoder

SAMPLES, SEQUENCE = 8, 16


@pytest.fixture
def samples() -> tuple[torch.Tensor, torch.Tensor]:
    """Eight samples whose labels are valid in 16, 14, 12, ... 2 places."""
    tokens = torch.randint(64, (SAMPLES, SEQUENCE), generator=torch.Generator().manual_seed(0))
    labels = torch.randint(64, (SAMPLES, SEQUENCE), generator=torch.Generator().manual_seed(1))
    for sample in range(SAMPLES):
        labels[sample, SEQUENCE - 2 * sample :] = IGNORED
    return tokens, labels


def split(samples, micro_batch_size: int) -> RankBatch:
    parts = [tensor.split(micro_batch_size) for tensor in samples]
    return RankBatch([MicroBatch(tokens, labels) for tokens, labels in zip(*parts, strict=True)], None)


def step_on(config, batch: RankBatch, gradient_clip_val: float | None = None):
    """The result of one step of plain gradient descent with rate 1, and the gradient that it followed."""
    model = Decoder(config.model, sequence_length=SEQUENCE)
    fill_weights(model, seed=1)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    result = train_step(model, optimizer, batch, global_tokens=batch.valid_tokens, gradient_clip_val=gradient_clip_val)
    return result, {name: before[name] - parameter.detach() for name, parameter in model.named_parameters()}


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("micro_batch_size", [1, 2, 4])
@pytest.mark.parametrize("family", ["small_llama", "small_gpt"])
def test_the_micro_batch_size_changes_no_gradient_even_where_samples_have_different_numbers_of_valid_tokens(
    family, micro_batch_size, samples, request
):
    config = request.getfixturevalue(family)
    whole, gradient = step_on(config, split(samples, SAMPLES))
    result, accumulated = step_on(config, split(samples, micro_batch_size))
    assert result.loss == pytest.approx(whole.loss, abs=1e-6)
    assert result.grad_norm == pytest.approx(whole.grad_norm, rel=1e-5)
    for name, value in gradient.items():
        torch.testing.assert_close(accumulated[name], value, atol=1e-6, rtol=1e-4)


@pytest.mark.usefixtures("alone")
def test_the_loss_is_the_mean_over_all_valid_tokens(small_llama, samples):
    model = Decoder(small_llama.model, sequence_length=SEQUENCE)
    fill_weights(model, seed=1)
    tokens, labels = samples
    mean = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), ignore_index=IGNORED).item()
    assert step_on(small_llama, split(samples, 2))[0].loss == pytest.approx(mean, abs=1e-6)
    assert validate(model, split(samples, 2).micro_batches, device=torch.device("cpu")) == pytest.approx(mean, abs=1e-6)


@pytest.mark.usefixtures("alone")
def test_clipping_scales_the_gradient_to_the_largest_norm_and_reports_the_norm_before(small_llama, samples):
    free, gradient = step_on(small_llama, split(samples, 4))
    clipped, scaled = step_on(small_llama, split(samples, 4), gradient_clip_val=free.grad_norm / 2)
    assert clipped.grad_norm == pytest.approx(free.grad_norm)
    assert sum(value.square().sum() for value in scaled.values()).sqrt().item() == pytest.approx(free.grad_norm / 2, rel=1e-3)
    unclipped, same = step_on(small_llama, split(samples, 4), gradient_clip_val=free.grad_norm * 2)
    torch.testing.assert_close(same, gradient)
    assert unclipped.grad_norm == free.grad_norm


@pytest.mark.usefixtures("alone")
def test_a_step_leaves_no_gradient_behind(small_llama, samples):
    model = Decoder(small_llama.model, sequence_length=SEQUENCE)
    fill_weights(model, seed=1)
    batch = split(samples, 4)
    train_step(model, build_optimizer(model, small_llama.optim), batch, global_tokens=batch.valid_tokens, gradient_clip_val=1.0)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert clip_gradients(model, None) == 0.0
