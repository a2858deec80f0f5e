"""What times under several conditions say about a step."""

import random

import pytest

from rampcli.settings.config import Config
from rampcli.tune.diagnosis import (
    ALONE,
    AS_IS,
    IN_MEMORY,
    NO_EXCHANGE,
    NO_GRADIENTS,
    NO_TOKENS,
    NO_WEIGHTS,
    Diagnosis,
    PartName,
)

ROUNDS = 9
CONDITIONS = (AS_IS, IN_MEMORY, NO_GRADIENTS, NO_WEIGHTS, NO_EXCHANGE, ALONE, NO_TOKENS)


def diagnosis(*seconds, drift=(0.0,) * ROUNDS, by_threads=None, not_measured=None):
    """Returns a diagnosis with these times of `CONDITIONS`, and a drift that hits all alike."""

    def rounds(time):
        return [time + more for more in drift]

    return Diagnosis(
        seconds={name: rounds(time) for name, time in zip(CONDITIONS, seconds, strict=False)},
        by_threads={count: rounds(time) for count, time in (by_threads or {}).items()},
        not_measured=not_measured or {},
        threads=4,
        tokens_per_micro_batch=8,
    )


def test_the_parts_of_a_step_are_what_each_condition_leaves_out_and_add_up_to_the_step():
    parts = {part.what: part.share for part in diagnosis(10.0, 6.0, 5.0, 4.8, 4.5, 3.0, 1.0).parts}
    assert parts == pytest.approx(
        {
            PartName.DATA: 0.4,
            PartName.GRADIENTS: 0.1,
            PartName.WEIGHTS: 0.02,
            PartName.WAITING: 0.03,
            PartName.NEIGHBOURS: 0.15,
            PartName.FIXED: 0.1,
            PartName.TOKENS: 0.2,
        }
    )
    assert sum(parts.values()) == pytest.approx(1.0)


def test_shares_are_not_negative_add_up_and_lie_in_their_intervals_however_times_vary():
    draw = random.Random(3)
    for _ in range(200):
        count = draw.randint(2, len(CONDITIONS))
        measured = diagnosis(*[10.0] * count, by_threads={1: 10.0, 2: 10.0})
        for times in (*measured.seconds.values(), *measured.by_threads.values()):
            times[:] = [draw.lognormvariate(2.0, 0.8) for _ in times]
        assert sum(part.share for part in measured.parts) == pytest.approx(1.0)
        for part in (*measured.parts, measured.excess_threads):
            assert 0.0 <= part.low <= part.share <= part.high


def test_a_machine_that_becomes_slower_does_not_change_the_parts():
    drift = [0.5 * number for number in range(ROUNDS)]
    steady, drifting = (
        {part.what: part for part in diagnosis(8.0, 6.0, drift=each).parts}
        for each in ([drift[ROUNDS // 2]] * ROUNDS, drift)
    )
    assert drifting[PartName.DATA] == steady[PartName.DATA]


def test_the_largest_part_is_named_first_and_fixed_work_last():
    found = diagnosis(10.0, 8.0, 5.0, 5.0, 5.0, 5.0, 4.5).bottlenecks(Config())
    assert [*found] == [PartName.GRADIENTS, PartName.DATA, PartName.FIXED]
    assert found[PartName.GRADIENTS].startswith("exchange of gradients takes 30% of the step: ")


def test_the_number_of_threads_that_saves_most_is_named():
    measured = diagnosis(10.0, 10.0, by_threads={1: 9.0, 2: 6.0})
    ((part, message),) = measured.bottlenecks(Config()).items()
    assert part == PartName.THREADS
    assert message.endswith("OMP_NUM_THREADS=2")


def test_a_share_that_may_be_small_is_not_named():
    step = [10.0] * ROUNDS
    unsteady = [5.0] * 5 + [9.9] * 4
    measured = diagnosis(10.0, 9.9)
    measured.seconds[AS_IS][:], measured.seconds[IN_MEMORY][:] = step, unsteady
    ((part, message),) = measured.bottlenecks(Config()).items()
    assert part == PartName.TOKENS
    assert message.endswith("vary too much to exclude one: measure on an idle machine")


def test_a_step_that_only_computes_has_no_bottleneck():
    measured = diagnosis(10.0, 9.9, 9.8, 9.7, 9.7, 9.6, 0.5)
    assert [*measured.bottlenecks(Config()).values()] == [
        "computing takes 96% of the step: no bottleneck outside the model"
    ]
    measured = diagnosis(10.0, 9.9, not_measured={PartName.GRADIENTS: "why"})
    (message,) = measured.bottlenecks(Config()).values()
    assert message.endswith(" in what was measured")


def test_a_diagnosis_is_precise_once_the_shares_are_known():
    assert diagnosis(10.0, 6.0).is_precise(spread=0.01)
    measured = diagnosis(10.0, 6.0)
    measured.seconds[IN_MEMORY][:] = [5.0, 7.0] * 4 + [6.0]
    assert not measured.is_precise(spread=0.05)
    assert measured.is_precise(spread=0.2)
