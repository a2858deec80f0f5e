import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rampcli.rl.advantages import EPSILON, batch_std, group_advantages

NAN = math.nan
REWARDS = torch.tensor([[0.0, 1.0, 2.0], [3.0, 3.0, 0.0]], dtype=torch.float64)


def test_an_advantage_is_the_distance_from_the_mean_of_the_group():
    found = group_advantages(REWARDS, scale="none")
    assert found.dtype is torch.float32
    assert found.tolist() == [[-1, 0, 1], [1, 1, -2]]


def test_group_divides_by_the_unbiased_deviation_within_each_group():
    found = group_advantages(REWARDS, scale="group")
    deviations = REWARDS.std(dim=1, keepdim=True)
    expected = group_advantages(REWARDS, scale="none") / (deviations + EPSILON)
    torch.testing.assert_close(found, expected.float())


def test_batch_divides_by_the_unbiased_deviation_of_all_rewards():
    assert batch_std(REWARDS) == pytest.approx(REWARDS.std().item())
    found = group_advantages(REWARDS[:1], scale="batch", batch_std=batch_std(REWARDS))
    expected = torch.tensor([[-1.0, 0.0, 1.0]]) / (REWARDS.std().item() + EPSILON)
    torch.testing.assert_close(found, expected)


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


@pytest.mark.parametrize("scale", ["none", "group", "batch"])
def test_a_missing_reward_changes_nothing_for_the_others_and_has_advantage_0(scale):
    def advantages(rewards):
        std = batch_std(rewards) if scale == "batch" else None
        return group_advantages(rewards, scale=scale, batch_std=std)

    missing = torch.tensor([[0.0, NAN, 1.0, 5.0, NAN]], dtype=torch.float64)
    present = missing[~missing.isnan()][None]
    expected = torch.zeros(1, 5)
    expected[~missing.isnan()] = advantages(present)[0]
    torch.testing.assert_close(advantages(missing), expected)


def test_without_two_rewards_there_is_no_deviation_and_the_advantage_is_0():
    one = torch.tensor([[NAN, 2.0], [NAN, NAN]], dtype=torch.float64)
    assert math.isnan(batch_std(one))
    assert not group_advantages(one, scale="group").any()
    assert not group_advantages(one, scale="batch", batch_std=batch_std(one)).any()


@pytest.mark.parametrize(("scale", "std"), [("batch", None), ("group", 1.0), ("none", 1.0)])
def test_the_deviation_of_the_batch_is_given_if_and_only_if_it_is_used(scale, std):
    with pytest.raises(ValueError, match="batch_std"):
        group_advantages(REWARDS, scale=scale, batch_std=std)
