import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.batch.noise_scale import (
    KEPT_MEASUREMENTS,
    MIN_MEASUREMENTS,
    Noise,
    NoiseAverage,
    NoiseScale,
    groups_per_step,
    noise_of,
    student_quantile,
)

RUNS = 200
FEWEST_HITS = 181
"""Of 200 intervals with 95% confidence, fewer hold the truth in one of 400 trials."""


def measured_regressions(runs: int, *, steps: int, size: int, shift: float, groups: list[int]):
    """Returns the averages of runs of linear regression, and the noise scale that they estimate.

    Inputs are normal, and labels have noise of variance 1. The weights are off by `shift` in one of
    `size` coordinates. So |G|^2 = shift^2, and the variance of the gradient of a sample is
    (size + 1) shift^2 + size.

    Args:
        groups: samples in each group of a step.
    """
    numbers = np.random.default_rng(5)
    total = sum(groups)
    averages = []
    for _ in range(runs):
        inputs = numbers.standard_normal((steps, total, size))
        errors = shift * inputs[..., 0] - numbers.standard_normal((steps, total))
        gradients = inputs * errors[..., None] / total
        added = np.add.reduceat(gradients, np.cumsum([0, *groups[:-1]]), axis=1)
        averages.append(
            NoiseAverage(
                noise_of(
                    whole_sq=whole,
                    groups_sq=parts,
                    shares_sq=sum((each / total) ** 2 for each in groups),
                    sequences=total,
                )
                for whole, parts in zip(
                    (added.sum(axis=1) ** 2).sum(axis=-1), (added**2).sum(axis=(1, 2)), strict=True
                )
            )
        )
    return averages, size + 1 + size / shift**2


@pytest.mark.parametrize(
    ("steps", "size", "shift", "groups"),
    [
        (KEPT_MEASUREMENTS, 20, 1.0, [8, 8, 8, 8]),
        (KEPT_MEASUREMENTS, 20, 1.0, [1, 2, 5, 24]),
        (KEPT_MEASUREMENTS, 100, 0.2, [16, 16]),  # a noise scale 80 times the batch
        (MIN_MEASUREMENTS, 20, 1.0, [8, 8, 8, 8]),
    ],
)
def test_the_interval_holds_the_noise_scale_of_a_linear_regression(steps, size, shift, groups):
    averages, truth = measured_regressions(RUNS, steps=steps, size=size, shift=shift, groups=groups)
    scales = [average.scale() for average in averages]
    known = [scale for scale in scales if scale.low is not None]
    assert len(known) > 0.95 * RUNS
    hits = sum(
        scale.low <= truth <= (math.inf if scale.high is None else scale.high) for scale in known
    )
    assert hits >= FEWEST_HITS * len(known) / RUNS


def test_many_measurements_give_the_noise_scale_without_bias():
    """A mean of quotients, or the norm of one group only, would be off."""
    averages, truth = measured_regressions(
        RUNS, steps=KEPT_MEASUREMENTS, size=20, shift=1.0, groups=[8, 8]
    )
    values = [scale.value for average in averages if (scale := average.scale()).value is not None]
    assert len(values) == RUNS
    assert np.median(values) == pytest.approx(truth, rel=0.03)


@given(
    mean_sq=st.floats(0.01, 10),
    variance=st.floats(0.01, 10),
    tokens=st.lists(st.integers(1, 50), min_size=2, max_size=6),
)
def test_expected_norms_give_the_mean_and_the_variance(mean_sq, variance, tokens):
    """With any tokens per group, if each token adds the same variance."""
    shares = [each / sum(tokens) for each in tokens]
    parts = [share**2 * mean_sq + share * variance for share in shares]
    noise = noise_of(
        whole_sq=mean_sq + variance,
        groups_sq=sum(parts),
        shares_sq=sum(share**2 for share in shares),
        sequences=7,
    )
    assert noise.grad_sq == pytest.approx(mean_sq, rel=1e-6, abs=1e-9)
    assert noise.grad_var == pytest.approx(7 * variance, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("shares_sq", [0.0, 1.0])
def test_a_step_with_one_group_or_no_tokens_says_nothing(shares_sq):
    assert noise_of(whole_sq=1, groups_sq=1, shares_sq=shares_sq, sequences=4) is None


def test_too_few_measurements_give_no_noise_scale():
    average = NoiseAverage()
    for count in range(MIN_MEASUREMENTS):
        assert average.scale() == NoiseScale()
        average.add(Noise(1.0 + 0.01 * count, 100.0))
    scale = average.scale()
    assert scale.low < scale.value < scale.high
    assert scale.value == pytest.approx(100 / 1.035)


def test_a_gradient_that_may_be_0_gives_a_lower_bound_only():
    numbers = np.random.default_rng(1)
    average = NoiseAverage(
        Noise(square, 50 + 0.1 * square) for square in numbers.normal(0.1, 2, KEPT_MEASUREMENTS)
    )
    scale = average.scale()
    assert (scale.value, scale.high) == (None, None)
    assert 0 < scale.low < 500
    assert scale.text(sequence_length=10).startswith(">= ")


def test_the_average_is_over_the_later_half_of_the_last_measurements():
    average = NoiseAverage([Noise(9.0, 9.0)] * MIN_MEASUREMENTS)
    assert average.scale() == NoiseScale(1.0, 1.0, 1.0)
    for _ in range(MIN_MEASUREMENTS):
        average.add(Noise(2.0, 6.0))
    assert average.scale() == NoiseScale(3.0, 3.0, 3.0)
    for _ in range(KEPT_MEASUREMENTS // 2):
        average.add(Noise(1.0, 7.0))
    assert average.scale() == NoiseScale(7.0, 7.0, 7.0)


def test_student_quantiles_are_those_of_tables():
    tables = {7: 2.3646, 15: 2.1314, 30: 2.0423, 63: 1.9983}
    for freedom, quantile in tables.items():
        assert student_quantile(freedom) == pytest.approx(quantile, abs=1e-3)


def test_a_text_says_sequences_and_tokens():
    text = NoiseScale(300.0, 200.0, 450.0).text(sequence_length=1000)
    assert text == (
        "300 sequences, 300K tokens (between 200 sequences, 200K tokens and 450 sequences,"
        " 450K tokens)"
    )
    assert NoiseScale().text(sequence_length=1000) == "unknown yet (it takes 8 measured steps)"


def test_groups_are_micro_batches_or_halves_of_the_only_one():
    def groups(ranks: int, accumulation: int, size: int, pieces: int | None = None) -> int:
        return groups_per_step(
            data_parallel_size=ranks,
            accumulate_grad_batches=accumulation,
            micro_batch_size=size,
            pieces=pieces,
        )

    assert (groups(2, 4, 1), groups(1, 1, 8), groups(1, 1, 1)) == (8, 2, 1)
    assert (groups(1, 1, 8, 4), groups(1, 1, 8, 1), groups(2, 1, 8, 1)) == (4, 1, 2)
