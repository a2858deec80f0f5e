"""Observers that measure the model."""

import math

import pytest
import torch

from rampcli.runs.metrics import Metric
from rampcli.train.observers.model_observer import Measurement, ModelObserver


class Given(ModelObserver):
    """Measures given numbers in the steps that a divisor divides."""

    def __init__(self, divisor: int = 1, **numbers: float) -> None:
        self.metrics = [Metric(name, "", over_ranks="norm") for name in ("one", "other")]
        self.divisor, self.numbers = divisor, numbers

    def measures(self, step):
        return step % self.divisor == 0

    def measure(self, _):
        return self.numbers


def test_a_step_has_the_columns_of_the_observers_that_measure_it(build_passes, small_llama):
    passes = build_passes(small_llama)
    measurement = Measurement([Given(divisor=2), Given(one=4.0, other=math.inf)], 3)
    addends = measurement.addends(passes)
    assert [addend.item() for addend in addends] == [4.0, math.inf]
    assert measurement.columns([4.0, math.inf]) == {"one": 2.0, "other": None}


def test_a_metric_that_a_rank_has_no_number_for_counts_as_zero(build_passes, small_llama):
    (one, other) = Measurement([Given(other=2.0)], 1).addends(build_passes(small_llama))
    assert (one.item(), other.item(), one.dtype) == (0.0, 2.0, torch.float64)


def test_a_number_that_is_not_declared_is_refused(build_passes, small_llama):
    with pytest.raises(ValueError, match=r"Given has not declared \['third'\]"):
        Measurement([Given(third=1.0)], 1).addends(build_passes(small_llama))


def test_without_observers_nothing_is_measured(build_passes, small_llama):
    measurement = Measurement([], 1)
    assert (measurement.addends(build_passes(small_llama)), measurement.columns(())) == ([], {})
