import pytest

from rampcli.tune.median import Median
from rampcli.tune.trial import FITS, OUT_OF_MEMORY, Trial
from rampcli.tune.verdict import scaling, verdict_of


def trial(size, step_s, *, accumulate=1, verdict=FITS, steps=9):
    """Returns a trial on two ranks; `step_s` gives seconds by micro batches per step."""
    return Trial(
        micro_batch_size=size,
        verdict=verdict,
        reason=None,
        world_size=2,
        data_parallel_size=2,
        accumulate_grad_batches=accumulate,
        medians={
            count: Median(s=s, low_s=0.98 * s, high_s=1.04 * s, steps=steps)
            for count, s in step_s.items()
        },
        peak_memory_bytes=None,
        device=None,
        device_name=None,
    )


def test_the_smallest_size_within_3_percent_of_the_best_throughput_is_recommended():
    trials = [
        trial(1, {1: 0.083}),
        trial(2, {1: 0.091}),
        trial(4, {1: 0.171}),
        trial(8, {1: 0.340}),
        trial(16, {}, verdict=OUT_OF_MEMORY),
    ]
    verdict = verdict_of(trials)
    assert (verdict.largest, verdict.fastest, verdict.recommended) == (
        trials[3],
        trials[3],
        trials[2],
    )
    assert verdict.share == pytest.approx(0.994, abs=1e-3)


def test_a_larger_size_that_is_slower_is_not_recommended():
    trials = [trial(4, {1: 0.1}), trial(8, {1: 0.25})]
    verdict = verdict_of(trials)
    assert (verdict.largest, verdict.fastest, verdict.recommended) == (
        trials[1],
        trials[0],
        trials[0],
    )


def test_without_a_size_that_fits_there_is_no_verdict():
    assert verdict_of([trial(1, {}, verdict=OUT_OF_MEMORY)]) is None


def test_the_time_of_a_long_step_follows_from_two_short_ones():
    exchange_s, micro_batch_s = 1.0, 0.25
    short = {count: exchange_s + count * micro_batch_s for count in (1, 8)}
    long = trial(3, short, accumulate=64)
    assert long.step_s == pytest.approx(exchange_s + 64 * micro_batch_s)
    assert long.samples_per_s == pytest.approx(3 * 2 * 64 / long.step_s)
    assert long.spread == pytest.approx(0.03)


def test_too_few_steps_have_no_interval():
    assert trial(3, {1: 0.7}, steps=5).spread is None
    assert trial(3, {1: 0.7}, steps=6).spread == pytest.approx(0.03)


def test_a_step_that_was_timed_itself_is_taken_as_it_is():
    assert trial(3, {5: 0.7}, accumulate=5).step_s == 0.7


def test_scaling_compares_with_half_the_size():
    trials = [trial(2, {1: 0.1}), trial(4, {1: 0.1}), trial(6, {1: 0.1}), trial(3, {1: 0.2})]
    found = [scaling(one, trials) for one in trials]
    assert found == pytest.approx([None, 2.0, 4.0, None])
