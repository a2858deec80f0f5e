import gc
import weakref

import pytest
import torch

from rampcli.data.corpus import IGNORED
from rampcli.data.loader import MicroBatch
from rampcli.train.group_norms import GroupNorms
from rampcli.train.step import accumulate_gradient

SAMPLES, SEQUENCE = 5, 16


@pytest.fixture
def batch() -> MicroBatch:
    """Five samples with 16, 13, 10, 7 and 4 valid labels."""
    tokens, labels = torch.randint(
        64, (2, SAMPLES, SEQUENCE), generator=torch.Generator().manual_seed(0)
    )
    for sample in range(SAMPLES):
        labels[sample, SEQUENCE - 3 * sample :] = IGNORED
    return MicroBatch(tokens, labels)


def part_of(batch: MicroBatch, samples: slice) -> MicroBatch:
    return MicroBatch(batch.tokens[samples], batch.labels[samples])


def step(passes, micro_batches, norms=None):
    tokens = sum(int((each.labels != IGNORED).sum()) for each in micro_batches)
    for part in passes.parts:
        part.zero_grad()
    result = accumulate_gradient(
        passes, micro_batches, global_tokens=tokens, gradient_clip_val=None, norms=norms
    ).wait()
    return result, [weight.grad.clone() for weight in passes.parts[0].parameters()]


@pytest.mark.parametrize("family", ["small_llama", "small_gpt"])
def test_the_norms_are_those_of_the_gradient_of_each_sample_by_itself(
    family, batch, request, build_passes
):
    passes = build_passes(request.getfixturevalue(family))
    norms = GroupNorms(passes.parts, passes.meshes, pieces=1)
    singles = [part_of(batch, slice(sample, sample + 1)) for sample in range(SAMPLES)]
    result, together = step(passes, singles, norms)
    squares = shares = 0.0
    valid = int((batch.labels != IGNORED).sum())
    for single in singles:
        own, gradient = step(passes, [single])
        assert own.groups == ()
        share = int((single.labels != IGNORED).sum()) / valid
        shares += share**2
        squares += share**2 * sum(float(each.double().square().sum()) for each in gradient)
    assert result.groups == pytest.approx((squares, shares), rel=1e-5)
    assert result.grad_norm**2 == pytest.approx(
        sum(float(each.double().square().sum()) for each in together), rel=1e-5
    )


def test_a_measured_step_has_the_gradient_of_any_other(small_llama, batch, build_passes):
    passes = build_passes(small_llama)
    norms = GroupNorms(passes.parts, passes.meshes, pieces=1)
    pair = [part_of(batch, slice(3)), part_of(batch, slice(3, 5))]
    _, gradient = step(passes, pair)
    _, measured = step(passes, pair, norms)
    _, of_halves = step(passes, [batch], norms)  # whose halves are the same pair
    for once, again, halved in zip(gradient, measured, of_halves, strict=True):
        assert torch.equal(once, again)
        assert torch.equal(once, halved)


def test_hooks_do_not_keep_a_model_alive(small_llama, build_passes):
    passes = build_passes(small_llama)
    norms = GroupNorms(passes.parts, passes.meshes, pieces=1)
    weight = weakref.ref(next(passes.parts[0].parameters()))
    del passes
    gc.collect()
    assert weight() is None
    assert norms.pieces is None


def test_a_run_that_measures_nothing_has_no_hooks(small_llama, build_passes):
    passes = build_passes(small_llama)
    assert all(not weight._backward_hooks for weight in passes.parts[0].parameters())
