import pytest
import torch
import torch.nn.functional as F

from rampcli.data.corpus import IGNORED
from rampcli.data.loader import MicroBatch
from rampcli.train.step import MOST_LOSS_GROUPS, accumulate_gradient, validate

SAMPLES, SEQUENCE = 8, 16


@pytest.fixture
def samples() -> tuple[torch.Tensor, torch.Tensor]:
    """Eight samples with 16, 14, 12, ... 2 valid labels."""
    tokens = torch.randint(64, (SAMPLES, SEQUENCE), generator=torch.Generator().manual_seed(0))
    labels = torch.randint(64, (SAMPLES, SEQUENCE), generator=torch.Generator().manual_seed(1))
    for sample in range(SAMPLES):
        labels[sample, SEQUENCE - 2 * sample :] = IGNORED
    return tokens, labels


def split(samples, micro_batch_size: int) -> list[MicroBatch]:
    parts = [tensor.split(micro_batch_size) for tensor in samples]
    return [MicroBatch(tokens, labels) for tokens, labels in zip(*parts, strict=True)]


@pytest.fixture
def gradient_on(build_passes):
    """Computes the result of a step on initial weights, and its gradient by parameter."""

    def compute(config, micro_batches: list[MicroBatch], gradient_clip_val: float | None = None):
        passes = build_passes(config)
        tokens = sum(int((micro_batch.labels != IGNORED).sum()) for micro_batch in micro_batches)
        result = accumulate_gradient(
            passes, micro_batches, global_tokens=tokens, gradient_clip_val=gradient_clip_val
        ).wait()
        return result, {
            name: parameter.grad for name, parameter in passes.parts[0].named_parameters()
        }

    return compute


@pytest.mark.parametrize("mode", ["selective", "full"])
@pytest.mark.parametrize("family", ["small_llama", "small_gpt"])
def test_activation_checkpointing_keeps_the_gradient_bit_for_bit(
    family, mode, samples, request, gradient_on
):
    config = request.getfixturevalue(family)
    whole, gradient = gradient_on(config, split(samples, 4))
    config.trainer.activation_checkpointing = mode
    result, recomputed = gradient_on(config, split(samples, 4))
    assert result == whole
    for name, value in gradient.items():
        assert torch.equal(recomputed[name], value)


@pytest.mark.parametrize("z_weight", [None, 0.3])
@pytest.mark.parametrize("micro_batch_size", [1, SAMPLES])
@pytest.mark.parametrize("family", ["small_llama", "small_gpt"])
def test_the_gradient_is_the_one_of_the_mean_loss_and_of_the_weighted_mean_z_loss(
    family, micro_batch_size, z_weight, samples, request, build_passes, gradient_on
):
    """The oracle is the same model in double precision. The GPT ties its embeddings."""
    config, (tokens, labels) = request.getfixturevalue(family), samples
    config.loss.z_weight = z_weight
    passes = build_passes(config)
    exact, valid = build_passes(config).parts[0].double(), labels.flatten() != IGNORED
    logits = exact(tokens).flatten(0, 1)[valid]
    loss = F.cross_entropy(logits, labels.flatten()[valid])
    z_loss = logits.logsumexp(dim=1).square().mean()
    (loss + (z_weight or 0) * z_loss).backward()
    result, gradient = gradient_on(config, split(samples, micro_batch_size))
    assert result.loss == pytest.approx(loss.item(), abs=1e-6)
    expected = None if z_weight is None else pytest.approx(z_loss.item(), rel=1e-6)
    assert result.z_loss == expected
    for name, parameter in exact.named_parameters():
        torch.testing.assert_close(gradient[name].double(), parameter.grad, atol=1e-6, rtol=1e-4)
    validation = validate(passes, split(samples, micro_batch_size), samples=SAMPLES)
    assert validation.loss == pytest.approx(loss.item(), abs=1e-6)


@pytest.mark.parametrize("passes_in_all", [2, MOST_LOSS_GROUPS + 3])
def test_the_groups_of_a_validation_add_up_to_its_loss(
    passes_in_all, small_llama, samples, build_passes
):
    passes, parts = build_passes(small_llama), split(samples, 4)
    chunks = [parts[turn % 2] for turn in range(passes_in_all)]
    found = validate(passes, chunks, samples=4 * passes_in_all)
    assert len(found.groups) == min(passes_in_all, MOST_LOSS_GROUPS)
    loss, tokens = (sum(one) for one in zip(*found.groups, strict=True))
    assert found.loss == pytest.approx(loss / tokens)
    assert tokens == sum(int((chunk.labels != IGNORED).sum()) for chunk in chunks)


def test_clipping_scales_the_gradient_to_the_largest_norm_and_reports_the_norm_before(
    small_llama, samples, gradient_on
):
    free, gradient = gradient_on(small_llama, split(samples, 4))
    assert free.grad_norm == pytest.approx(
        sum(value.double().square().sum() for value in gradient.values()).sqrt().item(), rel=1e-6
    )
    clipped, scaled = gradient_on(
        small_llama, split(samples, 4), gradient_clip_val=free.grad_norm / 2
    )
    assert clipped.grad_norm == pytest.approx(free.grad_norm)
    assert sum(value.square().sum() for value in scaled.values()).sqrt().item() == pytest.approx(
        free.grad_norm / 2, rel=1e-5
    )
    unclipped, same = gradient_on(
        small_llama, split(samples, 4), gradient_clip_val=free.grad_norm * 2
    )
    torch.testing.assert_close(same, gradient)
    assert unclipped.grad_norm == free.grad_norm
