import math

import pytest
import torch

from rampcli.checkpoint.state import TrainingState
from rampcli.train.guard import COMPARED_STEPS, MIN_STEPS, StepGuard
from rampcli.train.step import DeviceResult, StepResult

STATE = TrainingState()
USUAL = [
    StepResult(loss=2 + 0.01 * (step % 5), grad_norm=1 + 0.1 * (step % 3))
    for step in range(COMPARED_STEPS)
]


def guard(**options) -> StepGuard:
    return StepGuard(on_nonfinite="skip", checkpoints=None, unit="samples", **options)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_nonfinite_loss_or_norm_is_named(wrong):
    for name, values in (("loss", (wrong, 1.0)), ("gradient norm", (1.0, wrong))):
        assert guard(sigma=None).judge(STATE, StepResult(*values)) == f"the {name} is {wrong}"


@pytest.mark.parametrize(
    "spike", [StepResult(loss=3.0, grad_norm=1.0), StepResult(loss=2.0, grad_norm=9.0)]
)
def test_an_outlier_is_found_only_after_enough_earlier_steps(spike):
    for before in (MIN_STEPS - 1, MIN_STEPS, COMPARED_STEPS):
        outliers = guard(sigma=6.0)
        assert [outliers.judge(STATE, result) for result in USUAL[:before]] == [None] * before
        assert (outliers.judge(STATE, spike) is not None) == (before >= MIN_STEPS)


def test_a_lasting_change_of_level_stops_being_an_outlier():
    outliers = guard(sigma=3.0)
    for result in USUAL:
        outliers.judge(STATE, result)
    verdicts = [
        outliers.judge(STATE, StepResult(loss=5.0, grad_norm=1.0)) for _ in range(COMPARED_STEPS)
    ]
    assert verdicts[0] is not None
    assert verdicts[-1] is None


def test_outliers_are_the_same_after_resuming_with_the_recent_steps():
    one = guard(sigma=4.0)
    for result in USUAL[:100]:
        one.judge(STATE, result)
    other = guard(sigma=4.0, recent=one.recent)
    for result in [*USUAL[100:], StepResult(loss=2.06, grad_norm=1.0)]:
        assert one.judge(STATE, result) == other.judge(STATE, result)


def test_without_a_limit_there_are_no_outliers_and_no_memory():
    outliers = guard(sigma=None)
    for result in [*USUAL, StepResult(loss=1e9, grad_norm=1e9)]:
        assert outliers.judge(STATE, result) is None
    assert outliers.recent == []


@pytest.mark.parametrize("loss", [1.9, 2.02, 2.5, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("grad_norm", [1.0, 1.3, 9.0, math.nan, math.inf])
@pytest.mark.parametrize("sigma", [None, 1.5])
def test_the_device_skips_exactly_the_steps_that_the_host_names(sigma, loss, grad_norm):
    outliers = guard(sigma=sigma, recent=[(each.loss, each.grad_norm) for each in USUAL])
    on_device = DeviceResult(torch.tensor([loss, grad_norm], dtype=torch.float64))
    skips = bool(on_device.is_harmful(outliers.limits))
    known = on_device.wait()
    assert skips == (outliers.judge(STATE, known) is not None)
