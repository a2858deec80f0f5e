import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rampcli.data.corpus import Cut, MockCorpus
from rampcli.data.order import Blend, SampleOrder
from rampcli.settings.data import MOST_SHARES
from small_corpora import token_corpus

SEEDS = st.integers(0, 2**63)
WINDOWS = st.integers(1, 300)


def windows(order, first, end):
    return order.windows_of(np.arange(first, end))


def chi_square(counts, *, freedom=None):
    """Returns Pearson's statistic against equal counts, in standard deviations above its mean.

    All rows of `counts` have the same sum, unless the degrees of freedom are given.
    """
    freedom = freedom or (counts.shape[0] - 1) * (counts.shape[1] - 1)
    expected = counts.mean()
    return (((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)


@given(size=WINDOWS, seed=SEEDS, epoch=st.integers(0, 50), corpus=st.integers(0, 30))
@example(size=1, seed=0, epoch=0, corpus=0)
@example(size=2, seed=0, epoch=1, corpus=0)
@example(size=4**5, seed=0, epoch=0, corpus=0)
@example(size=4**5 + 1, seed=0, epoch=0, corpus=0)
def test_every_epoch_reads_every_window_once(size, seed, epoch, corpus):
    order = SampleOrder(windows=size, seed=seed, corpus=corpus)
    read = windows(order, epoch * size, (epoch + 1) * size)
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


def test_windows_have_the_shape_of_the_samples_which_are_not_changed():
    order, samples = SampleOrder(windows=100, seed=7), np.arange(60, 120).reshape(3, 4, 5)
    flat = order.windows_of(samples.ravel())
    assert np.array_equal(order.windows_of(samples), flat.reshape(3, 4, 5))
    assert np.array_equal(samples.ravel(), np.arange(60, 120))


@pytest.mark.parametrize(
    ("size", "first", "read"),
    [
        (1000, 0, [219, 153, 214, 585, 443, 471, 476, 446]),
        (2**40, 0, [614982743736, 550473962022, 1045744107234, 356341113293]),
        (10, 10, [8, 6, 2, 0, 1, 4, 7, 9, 5, 3]),
    ],
)
def test_the_order_is_the_same_on_every_machine_and_in_every_version(size, first, read):
    for order in (
        SampleOrder(windows=size, seed=1234),
        SampleOrder(windows=size, seed=1234, corpus=0),
    ):
        assert windows(order, first, first + len(read)).tolist() == read


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


@pytest.mark.parametrize("of", ["seeds", "corpora"])
def test_every_window_is_equally_likely_to_be_first(of):
    orders = [
        SampleOrder(windows=50, **({"seed": n} if of == "seeds" else {"seed": 7, "corpus": n}))
        for n in range(2500)
    ]
    first = np.array([order.windows_of(np.array([0]))[0] for order in orders])
    assert abs(chi_square(np.bincount(first, minlength=50), freedom=49)) < 5


@pytest.mark.parametrize("place", [0, 4])
def test_every_pair_of_windows_is_equally_likely_to_be_consecutive(place):
    counts = np.zeros((9, 9))
    for seed in range(3000):
        one, next_one = windows(SampleOrder(windows=9, seed=seed), place, place + 2)
        counts[one, next_one] += 1
    assert not counts.diagonal().any()
    assert abs(chi_square(counts[~np.eye(9, dtype=bool)], freedom=71)) < 5


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


CUT = Cut(sequence_length=5, vocab_size=50)
SHARES = st.lists(st.integers(1, 1000), min_size=1, max_size=9)


def mock(windows=37, seed=3, cut=CUT):
    return MockCorpus(cut=cut, seed=seed, windows=windows)


def text(documents, **cut):
    return token_corpus(documents, cut=Cut(sequence_length=5, vocab_size=50, **cut))


def blend(shares, *, seed=11, windows=37):
    return Blend([mock(windows, seed=number) for number in range(len(shares))], shares, seed=seed)


def halvings(corpora):
    """Returns how often a list of corpora is halved until one is left."""
    return (corpora - 1).bit_length()


def assign_in_exact_numbers(shares, sample):
    """Implements the docstring of `Blend` in Python's integers."""
    low, high = 0, len(shares)
    while high - low > 1:
        middle, left, both = (
            (low + high) // 2,
            sum(shares[low : (low + high) // 2]),
            sum(shares[low:high]),
        )
        before, after = ((2 * count * left + both) // (2 * both) for count in (sample, sample + 1))
        low, high, sample = (
            (low, middle, before) if after > before else (middle, high, sample - before)
        )
    return low, sample


@given(shares=SHARES)
@example(shares=[1, 1000, 1, 1000])
@example(shares=[1000, 1, 1, 1, 1, 1, 1, 1])
def test_each_corpus_keeps_its_share_within_half_a_sample_per_halving(shares):
    which, _ = blend(shares).assign(np.arange(400))
    counts = (which[:, None] == np.arange(len(shares))).cumsum(axis=0)
    for corpus, share in enumerate(shares):
        for first, count in enumerate(counts[:, corpus].tolist(), start=1):
            assert abs(count - Fraction(first * share, sum(shares))) <= Fraction(
                halvings(len(shares)), 2
            )


@given(shares=SHARES)
def test_samples_of_a_corpus_are_numbered_consecutively(shares):
    which, turns = blend(shares).assign(np.arange(300))
    for corpus in range(len(shares)):
        mine = turns[which == corpus]
        assert mine.tolist() == list(range(len(mine)))


@given(
    shares=st.lists(st.integers(1, MOST_SHARES // 8), min_size=2, max_size=8),
    samples=st.lists(st.integers(0, 10**15), min_size=1, max_size=20),
)
@example(shares=[MOST_SHARES - 1, 1], samples=[10**15, 10**15 - 1, 0])
@example(shares=[1, MOST_SHARES - 1], samples=[10**15, 2**31, 2**31 - 1])
@example(shares=[MOST_SHARES // 2 - 1, 1, MOST_SHARES // 2 - 1, 1], samples=[10**15, 7])
def test_shares_of_huge_samples_do_not_overflow(shares, samples):
    which, turns = blend(shares).assign(np.array(samples))
    assert list(zip(which.tolist(), turns.tolist(), strict=True)) == [
        assign_in_exact_numbers(shares, sample) for sample in samples
    ]


@given(shares=SHARES, data=st.data())
def test_a_sample_does_not_depend_on_the_other_samples_requested(shares, data):
    samples = np.array(data.draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=24)))
    made = blend(shares)
    which, windows = made.locate(samples)
    for sample, corpus, window in zip(samples, which, windows, strict=True):
        assert [int(found[0]) for found in blend(shares).locate(np.array([sample]))] == [
            corpus,
            window,
        ]
    for shape in ((1, -1), (-1, 1, 1)):
        again = made.locate(samples.reshape(shape))
        assert np.array_equal(again[0], which.reshape(shape))
        assert np.array_equal(again[1], windows.reshape(shape))


def test_locating_samples_does_not_change_its_input():
    samples = np.arange(90, 140)
    blend([3, 2]).locate(samples)
    assert np.array_equal(samples, np.arange(90, 140))


def test_a_blend_is_the_same_on_every_machine_and_in_every_version():
    which, windows = blend([7, 2, 1], seed=1234, windows=1000).locate(np.arange(12))
    assert which.tolist() == [0, 1, 0, 0, 0, 2, 0, 0, 1, 0, 0, 1]
    assert windows.tolist() == [219, 386, 153, 214, 585, 506, 443, 471, 94, 476, 446, 28]


@settings(max_examples=30)
@given(seed=st.integers(0, 2**63), windows=st.integers(9, 60), share=st.integers(1, MOST_SHARES))
def test_a_single_corpus_is_read_in_order_whatever_its_share(seed, windows, share):
    which, places = blend([share], seed=seed, windows=windows).locate(np.arange(150))
    assert not which.any()
    assert np.array_equal(
        places, SampleOrder(windows=windows, seed=seed).windows_of(np.arange(150))
    )


@settings(max_examples=20)
@given(
    shares=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    sizes=st.lists(st.integers(4, 40), min_size=4, max_size=4),
)
def test_each_epoch_of_each_corpus_reads_each_of_its_windows_once(shares, sizes):
    corpora = [mock(size, seed=number) for number, size in enumerate(sizes[: len(shares)])]
    which, windows = Blend(corpora, shares, seed=5).locate(np.arange(200))
    for number, corpus in enumerate(corpora):
        mine = windows[which == number]
        epochs = len(mine) // corpus.windows
        for epoch in mine[: epochs * corpus.windows].reshape(epochs, corpus.windows):
            assert sorted(epoch) == list(range(corpus.windows))


def test_corpora_of_equal_size_are_read_in_different_orders():
    which, windows = blend([1, 1, 1], windows=50).locate(np.arange(150))
    orders = {tuple(windows[which == number].tolist()) for number in range(3)}
    assert len(orders) == 3


@settings(max_examples=20)
@given(seed=st.integers(0, 2**63))
def test_another_seed_reads_other_windows_in_the_same_proportion(seed):
    samples = np.arange(100)
    (which, windows), (others, other_windows) = (
        blend([3, 1], seed=one, windows=10**6).locate(samples) for one in (seed, seed + 1)
    )
    assert np.array_equal(which, others)
    assert not np.array_equal(windows, other_windows)


def test_without_a_seed_corpora_are_read_in_order_from_the_start():
    which, windows = blend([2, 1], seed=None).locate(np.arange(30))
    for number, read in ((0, 20), (1, 10)):
        assert windows[which == number].tolist() == list(range(read))


@pytest.mark.parametrize("cut", [{}, {"eod_mask_loss": True}, {"document_mask": True}], ids=str)
@given(data=st.data())
@settings(max_examples=20)
def test_rows_are_in_the_requested_order_and_equal_those_of_each_corpus_alone(cut, data):
    corpora = [text([np.full(size, token) for size in (3, 4, 1, 6, 5)], **cut) for token in (1, 2)]
    corpora.append(mock(cut=Cut(sequence_length=5, vocab_size=50, **cut)))
    made = Blend(corpora, [2, 2, 1], seed=3)
    samples = np.array(data.draw(st.lists(st.integers(0, 200), min_size=1, max_size=12)))
    read, valid_tokens = made.read(samples), 0
    for row, (corpus, window) in enumerate(zip(*made.locate(samples), strict=True)):
        alone = corpora[corpus].read(np.array([window]))
        valid_tokens += alone.valid_tokens
        assert np.array_equal(read.tokens[row], alone.tokens[0])
        assert np.array_equal(read.labels[row], alone.labels[0])
        assert (read.positions is None) == (alone.positions is None) == ("document_mask" not in cut)
        assert read.positions is None or np.array_equal(read.positions[row], alone.positions[0])
    assert read.valid_tokens == valid_tokens
    assert read.tokens.dtype == read.labels.dtype == np.int64


def test_the_fingerprints_of_a_blend_are_stable_and_independent_of_the_seed():
    found = blend([2, 1]).fingerprints
    assert found == blend([2, 1]).fingerprints == blend([2, 1], seed=12).fingerprints
    assert [len(bytes.fromhex(one)) for one in found] == [32, 32]


@pytest.mark.parametrize(
    ("seeds", "shares"),
    [
        ([1, 0], [2, 1]),
        ([0, 2], [2, 1]),
        ([0], [2]),
        ([0, 1, 2], [2, 1, 1]),
        ([0, 0], [2, 1]),
    ],
    ids=["other order", "other corpus", "fewer", "more", "a corpus twice"],
)
def test_a_blend_of_other_corpora_has_other_fingerprints(seeds, shares):
    other = Blend([mock(seed=seed) for seed in seeds], shares, seed=11)
    assert set(other.fingerprints).isdisjoint(blend([2, 1]).fingerprints)


def test_other_shares_change_only_the_fingerprint_that_earlier_versions_saved():
    (corpora, blended), (same, other) = blend([2, 1]).fingerprints, blend([1, 2]).fingerprints
    assert corpora == same
    assert blended != other


def test_the_fingerprint_of_one_corpus_is_that_of_earlier_versions():
    corpora, blended = Blend([mock()]).fingerprints
    assert corpora == blended
