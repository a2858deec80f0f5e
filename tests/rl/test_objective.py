import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rampcli.data.corpus import IGNORED
from rampcli.rl.objective import (
    Objective,
    PolicyBatch,
    PolicySums,
    group_advantages,
)
from rampcli.settings.rl import RLConfig

PAIRS, LENGTH = 8, 12
RESPONSES = [9, 3, 1, 6, 2, 9, 5, 4]
"""Response tokens of each pair."""


def some_batch(
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor, PolicyBatch]:
    """Returns log-probabilities, entropies, and pairs whose old policy was another one."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=dtype)

    log_probs = -3 * draw(PAIRS, LENGTH)
    labels = torch.full((PAIRS, LENGTH), IGNORED)
    for pair, response in enumerate(RESPONSES):
        labels[pair, 2 : 2 + response] = 7
    # The shift of a whole pair makes the ratios of sequences leave the bounds.
    distances = draw(PAIRS, 1) + 0.6 * draw(PAIRS, LENGTH) - 0.8
    batch = PolicyBatch(
        tokens=labels,
        labels=labels,
        advantages=(torch.arange(PAIRS) % 4 - 1.5).to(dtype),
        old_log_probs=(log_probs + distances).where(labels >= 0, math.nan),
        is_first_update=False,
        reference_log_probs=(log_probs + draw(PAIRS, LENGTH)).where(labels >= 0, math.nan),
    )
    return log_probs.requires_grad_(), draw(PAIRS, LENGTH), batch


def rows(batch: PolicyBatch, part: slice) -> PolicyBatch:
    return PolicyBatch(
        tokens=batch.tokens[part],
        labels=batch.labels[part],
        advantages=batch.advantages[part],
        old_log_probs=batch.old_log_probs[part],
        is_first_update=batch.is_first_update,
        reference_log_probs=batch.reference_log_probs[part],
    )


def objective(**changes) -> Objective:
    longest = changes.pop("max_response_tokens", 10)
    return Objective(RLConfig(**{"kl_weight": 0.1, "kl_correction": False} | changes), longest)


def update(objective: Objective, *, passes: int) -> tuple[float, torch.Tensor, PolicySums]:
    """Returns the loss of an update, its gradient, and its sums."""
    log_probs, entropy, batch = some_batch()
    denominator = objective.denominator(pairs=PAIRS, tokens=sum(RESPONSES))
    total, sums = 0.0, torch.zeros(len(PolicySums._fields), dtype=torch.float64)
    for first in range(0, PAIRS, PAIRS // passes):
        part = slice(first, first + PAIRS // passes)
        loss, found = objective(log_probs[part], entropy[part], rows(batch, part))
        (loss / denominator).backward()
        total += loss.item() / denominator
        sums += found
    return total, log_probs.grad, PolicySums(*sums.tolist())


@pytest.mark.parametrize("average", ["tokens", "sequences", "length"])
@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_the_gradient_does_not_depend_on_how_pairs_are_split_into_passes(ratio, average):
    whole = update(objective(ratio=ratio, average=average), passes=1)
    assert whole[1].any()
    for passes in (2, 4, 8):
        loss, gradient, sums = update(objective(ratio=ratio, average=average), passes=passes)
        assert loss == pytest.approx(whole[0], rel=1e-12)
        torch.testing.assert_close(gradient, whole[1], rtol=1e-12, atol=1e-15)
        assert sums == pytest.approx(whole[2], rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_the_ratios_of_the_first_update_are_exactly_1_and_none_is_clipped(ratio, dtype):
    log_probs, entropy, batch = some_batch(dtype)
    batch = replace(batch, is_first_update=True)
    loss, vector = objective(ratio=ratio, kl_weight=0.0)(log_probs, entropy, batch)
    sums = PolicySums(*vector.tolist())
    assert sums.ratio == sums.ratios == (PAIRS if ratio == "sequence" else sum(RESPONSES))
    assert sums.clipped == 0 < sums.old_kl
    responses = torch.tensor(RESPONSES, dtype=dtype)
    assert loss.item() == pytest.approx(-(batch.advantages * responses).sum().item())
    (gradient,) = torch.autograd.grad(loss, log_probs)
    expected = -batch.advantages[:, None] * (batch.labels >= 0)
    torch.testing.assert_close(gradient, expected.to(dtype))


@pytest.mark.parametrize(
    ("ratio", "advantage", "is_clipped"),
    [
        *((1.35, 1, True), (1.25, 1, False), (1.35, -1, False), (1.35, 0, False)),
        *((0.85, -1, True), (0.95, -1, False), (0.85, 1, False)),
    ],
)
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_a_ratio_that_has_left_its_bounds_in_the_rewarded_direction_has_no_gradient(
    level, ratio, advantage, is_clipped
):
    log_probs = torch.full((1, 4), -1.0, requires_grad=True)
    labels = torch.tensor([[IGNORED, 7, 7, 7]])
    batch = PolicyBatch(
        tokens=labels,
        labels=labels,
        advantages=torch.tensor([float(advantage)]),
        old_log_probs=torch.full((1, 4), -1.0 - math.log(ratio)),
        is_first_update=False,
    )
    clipping = objective(clip_low=0.1, clip_high=0.3, ratio=level, kl_weight=0.0)
    loss, vector = clipping(log_probs, torch.zeros(1, 4), batch)
    sums = PolicySums(*vector.tolist())
    assert sums.means()["clipped"] == is_clipped
    assert sums.means()["ratio"] == pytest.approx(ratio)
    (gradient,) = torch.autograd.grad(loss, log_probs)
    slope = 0.0 if is_clipped else -ratio * advantage
    torch.testing.assert_close(gradient, torch.tensor([[0.0, slope, slope, slope]]))


def test_sums_are_those_of_response_tokens():
    log_probs, entropy, batch = some_batch()
    sums = PolicySums(*objective()(log_probs, entropy, batch)[1].tolist())
    counted = batch.labels >= 0
    apart = (batch.reference_log_probs - log_probs)[counted]
    moved = (log_probs - batch.old_log_probs)[counted]
    assert (sums.pairs, sums.tokens, sums.ratios) == (PAIRS, sum(RESPONSES), sum(RESPONSES))
    assert sums.ratio == pytest.approx(moved.exp().sum().item())
    assert sums.old_kl == pytest.approx((moved.exp() - moved - 1).sum().item())
    assert sums.reference_kl == pytest.approx((apart.exp() - apart - 1).sum().item())
    assert sums.entropy == pytest.approx(entropy[counted].sum().item())


def test_a_pair_without_response_counts_nowhere():
    """Ranks may need empty pairs, so that all of them run equally many passes."""
    log_probs, entropy, batch = some_batch()
    empty = replace(batch, labels=torch.full_like(batch.labels, IGNORED))
    for ratio in ("token", "sequence"):
        loss, vector = objective(ratio=ratio, average="sequences")(log_probs, entropy, empty)
        assert loss.item() == 0
        assert not vector.any()
        assert not torch.autograd.grad(loss, log_probs)[0].any()


@pytest.mark.parametrize(("corrected", "gradient_of"), [(False, "forward"), (True, "reverse")])
def test_the_gradient_of_the_divergence_is_that_of_the_kl_in_one_of_its_directions(
    corrected, gradient_of
):
    """Each label is drawn once, weighted by its probability, so there is no sampling noise."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(5, generator=generator, dtype=torch.float64, requires_grad=True)
    present = scores.log_softmax(0)
    reference = torch.randn(5, generator=generator, dtype=torch.float64).log_softmax(0)
    labels = torch.arange(5)[:, None]
    batch = PolicyBatch(
        tokens=labels,
        labels=labels,
        advantages=torch.zeros(5),
        old_log_probs=present[:, None].detach(),
        is_first_update=True,
        reference_log_probs=reference[:, None],
    )
    expected = {
        "forward": (reference.exp() * (reference - present)).sum(),
        "reverse": (present.exp() * (present - reference)).sum(),
    }[gradient_of]
    policy = objective(kl_weight=1.0, kl_correction=corrected)
    drawn = sum(
        present[label].exp().item()
        * policy(
            present[label].view(1, 1), torch.zeros(1, 1), rows(batch, slice(label, label + 1))
        )[0]
        for label in range(5)
    )
    torch.testing.assert_close(
        torch.autograd.grad(drawn, scores, retain_graph=True),
        torch.autograd.grad(expected, scores),
    )


def test_a_divergence_needs_a_reference():
    log_probs, entropy, batch = some_batch()
    with pytest.raises(ValueError, match="reference_log_probs"):
        objective()(log_probs, entropy, replace(batch, reference_log_probs=None))


@pytest.mark.parametrize(
    ("average", "expected"), [("tokens", 90), ("sequences", 16), ("length", 160)]
)
def test_the_denominator_counts_the_whole_update(average, expected):
    assert objective(average=average).denominator(pairs=16, tokens=90) == expected
    assert objective(average=average).denominator(pairs=0, tokens=0) == 1


NAN = math.nan
REWARDS = torch.tensor([[0.0, 1.0, 2.0], [3.0, 3.0, 0.0]], dtype=torch.float64)


@given(
    reward=st.floats(-1e6, 1e6),
    missing=st.lists(st.booleans(), min_size=1, max_size=9),
    scale=st.sampled_from(["none", "group", "batch"]),
)
def test_equal_rewards_give_advantages_of_exactly_0(reward, missing, scale):
    """An optimiser that normalises gradients would blow up what rounding leaves."""
    rewards = torch.tensor([[NAN if absent else reward for absent in missing]], dtype=torch.float64)
    std = 1.0 if scale == "batch" else None
    assert not group_advantages(rewards, scale=scale, batch_std=std).any()


@pytest.mark.parametrize(("scale", "std"), [("batch", None), ("group", 1.0), ("none", 1.0)])
def test_the_deviation_of_the_batch_is_given_if_and_only_if_it_is_used(scale, std):
    with pytest.raises(ValueError, match="batch_std"):
        group_advantages(REWARDS, scale=scale, batch_std=std)
