import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rampcli.data.order import SampleOrder

SEEDS = st.integers(0, 2**63)
WINDOWS = st.integers(1, 300)


def windows(order, first, end):
    return order.windows_of(np.arange(first, end))


def chi_square(counts):
    """Returns Pearson's statistic against equal counts, in standard deviations above its mean.

    All rows of `counts` have the same sum.
    """
    freedom = (counts.shape[0] - 1) * (counts.shape[1] - 1)
    expected = counts.sum() / counts.size
    return (((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)


@given(size=WINDOWS, seed=SEEDS, epoch=st.integers(0, 50))
@example(size=1, seed=0, epoch=0)
@example(size=2, seed=0, epoch=1)
@example(size=4**5, seed=0, epoch=0)
@example(size=4**5 + 1, seed=0, epoch=0)
def test_every_epoch_reads_every_window_once(size, seed, epoch):
    read = windows(SampleOrder(windows=size, seed=seed), epoch * size, (epoch + 1) * size)
    assert np.array_equal(np.sort(read), np.arange(size))


@settings(max_examples=40)
@given(size=st.integers(50, 700), seed=SEEDS, epoch=st.integers(0, 50))
def test_orders_of_different_epochs_and_seeds_differ(size, seed, epoch):
    order, other = SampleOrder(windows=size, seed=seed), SampleOrder(windows=size, seed=seed + 1)
    read = windows(order, epoch * size, (epoch + 1) * size)
    assert not np.array_equal(read, windows(order, (epoch + 1) * size, (epoch + 2) * size))
    assert not np.array_equal(read, windows(other, epoch * size, (epoch + 1) * size))
    assert not np.array_equal(read, np.arange(size))


@settings(max_examples=40)
@given(size=WINDOWS, seed=SEEDS, data=st.data())
def test_the_window_of_a_sample_does_not_depend_on_the_other_samples_requested(size, seed, data):
    samples = np.array(data.draw(st.lists(st.integers(0, 5 * size), min_size=1, max_size=40)))
    order = SampleOrder(windows=size, seed=seed)
    together = order.windows_of(samples)
    cut = data.draw(st.integers(0, len(samples)))
    assert np.array_equal(
        np.concatenate([order.windows_of(samples[:cut]), order.windows_of(samples[cut:])]), together
    )
    again = SampleOrder(windows=size, seed=seed)
    assert [int(again.windows_of(np.array([sample]))[0]) for sample in samples] == together.tolist()


def test_windows_have_the_shape_of_the_samples():
    order = SampleOrder(windows=100, seed=7)
    samples = np.arange(60).reshape(3, 4, 5)
    assert np.array_equal(
        order.windows_of(samples), order.windows_of(samples.ravel()).reshape(3, 4, 5)
    )


def test_locating_samples_does_not_change_its_input():
    samples = np.arange(90, 110)
    SampleOrder(windows=100, seed=7).windows_of(samples)
    assert np.array_equal(samples, np.arange(90, 110))


def test_the_order_is_the_same_on_every_machine_and_in_every_version():
    assert windows(SampleOrder(windows=1000, seed=1234), 0, 8).tolist() == [
        219,
        153,
        214,
        585,
        443,
        471,
        476,
        446,
    ]
    assert windows(SampleOrder(windows=2**40, seed=1234), 0, 4).tolist() == [
        614982743736,
        550473962022,
        1045744107234,
        356341113293,
    ]
    assert windows(SampleOrder(windows=10, seed=1234), 10, 20).tolist() == [
        8,
        6,
        2,
        0,
        1,
        4,
        7,
        9,
        5,
        3,
    ]


@settings(max_examples=30)
@given(size=st.integers(2**20, 2**62), seed=SEEDS)
@example(size=2**62, seed=1)
@example(size=2**40, seed=1)
def test_a_corpus_of_any_size_is_read_within_bounds_and_without_repetition(size, seed):
    read = windows(SampleOrder(windows=size, seed=seed), 0, 500)
    assert read.dtype == np.int64
    assert read.min() >= 0
    assert read.max() < size
    assert len(np.unique(read)) == 500


@pytest.mark.parametrize(("size", "seeds"), [(5, 1000), (37, 300)])
def test_over_many_seeds_every_place_gets_every_window_equally_often(size, seeds):
    counts = np.zeros((size, size))
    for seed in range(seeds):
        counts[np.arange(size), windows(SampleOrder(windows=size, seed=seed), 0, size)] += 1
    assert abs(chi_square(counts)) < 5


def test_over_many_epochs_every_place_gets_every_window_equally_often():
    size, order = 37, SampleOrder(windows=37, seed=5)
    read = windows(order, 0, 500 * size).reshape(500, size)
    counts = np.stack([np.bincount(read[:, place], minlength=size) for place in range(size)])
    assert abs(chi_square(counts)) < 5


def test_every_part_of_an_epoch_draws_from_the_whole_corpus():
    read = windows(SampleOrder(windows=100_000, seed=3), 0, 100_000)
    counts = np.stack([np.bincount(part // 5000, minlength=20) for part in np.split(read, 20)])
    assert abs(chi_square(counts)) < 5


def test_neighbouring_samples_are_not_neighbouring_windows():
    read = windows(SampleOrder(windows=100_000, seed=3), 0, 100_000)
    counts = np.zeros((20, 20))
    np.add.at(counts, (read[:-1] // 5000, read[1:] // 5000), 1)
    assert abs(chi_square(counts)) < 5


def test_a_corpus_without_windows_has_no_order():
    with pytest.raises(ValueError, match="windows=0"):
        SampleOrder(windows=0, seed=1)


@given(size=WINDOWS, seed=SEEDS, epoch=st.integers(0, 50), corpus=st.integers(1, 30))
def test_every_corpus_of_a_blend_is_read_whole_in_each_epoch(size, seed, epoch, corpus):
    read = windows(
        SampleOrder(windows=size, seed=seed, corpus=corpus), epoch * size, (epoch + 1) * size
    )
    assert np.array_equal(np.sort(read), np.arange(size))


@settings(max_examples=40)
@given(
    size=st.integers(50, 700),
    seed=SEEDS,
    corpora=st.lists(st.integers(0, 30), min_size=2, max_size=2, unique=True),
)
def test_corpora_of_a_blend_have_different_orders(size, seed, corpora):
    one, other = (
        windows(SampleOrder(windows=size, seed=seed, corpus=corpus), 0, size) for corpus in corpora
    )
    assert not np.array_equal(one, other)


def test_the_first_corpus_of_a_blend_has_the_order_of_a_single_corpus():
    for seed in (0, 1234):
        assert (
            SampleOrder(windows=1000, seed=seed, corpus=0).key
            == SampleOrder(windows=1000, seed=seed).key
            == str(seed)
        )
    assert windows(SampleOrder(windows=1000, seed=1234, corpus=0), 0, 4).tolist() == [
        219,
        153,
        214,
        585,
    ]


def stray(counts):
    """Returns Pearson's statistic against equal counts, in standard deviations above its mean."""
    freedom, expected = counts.size - 1, counts.mean()
    return (((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)


@pytest.mark.parametrize("of", ["seeds", "corpora"])
def test_every_window_is_equally_likely_to_be_first(of):
    orders = [
        SampleOrder(windows=50, **({"seed": n} if of == "seeds" else {"seed": 7, "corpus": n}))
        for n in range(2500)
    ]
    first = np.array([order.windows_of(np.array([0]))[0] for order in orders])
    assert abs(stray(np.bincount(first, minlength=50))) < 5


@pytest.mark.parametrize("place", [0, 4])
def test_every_pair_of_windows_is_equally_likely_to_be_consecutive(place):
    counts = np.zeros((9, 9))
    for seed in range(3000):
        one, next_one = windows(SampleOrder(windows=9, seed=seed), place, place + 2)
        counts[one, next_one] += 1
    assert not counts.diagonal().any()
    assert abs(stray(counts[~np.eye(9, dtype=bool)])) < 5


def test_the_memory_of_an_order_does_not_grow_with_its_windows():
    def peak(size):
        tracemalloc.start()
        order = SampleOrder(windows=size, seed=5)
        order.windows_of(np.array([size - 1, size, 3]))
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    peak(1000)
    assert peak(10**12) < 2 * peak(1000) + 10_000
