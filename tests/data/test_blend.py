from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rampcli.data.blend import Blend
from rampcli.data.corpus import Cut, MockCorpus, TokenCorpus
from rampcli.data.order import SampleOrder
from rampcli.settings.corpora import MOST_SHARES

CUT = Cut(sequence_length=5, vocab_size=50)
SHARES = st.lists(st.integers(1, 1000), min_size=1, max_size=9)


def mock(windows=37, seed=3, cut=CUT):
    return MockCorpus(cut=cut, seed=seed, windows=windows)


def text(documents, **cut):
    tokens = np.concatenate(documents)
    starts = np.cumsum([0, *map(len, documents)])[:-1]
    made = Cut(sequence_length=5, vocab_size=50, **cut)
    return TokenCorpus(
        name="text",
        tokens=tokens,
        documents=starts,
        first=0,
        end=len(tokens),
        cut=made,
        contents=str(tokens.tolist()),
    )


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


@given(shares=SHARES, first=st.integers(0, 10**15))
@example(shares=[1, MOST_SHARES - 1], first=10**15)
def test_shares_stay_exact_far_into_a_run(shares, first):
    _, turns = blend(shares).assign(np.array([first]))
    which, _ = blend(shares).assign(np.arange(first, first + 1))
    share = Fraction(first * shares[which[0]], sum(shares))
    assert abs(int(turns[0]) - share) <= Fraction(halvings(len(shares)), 2)


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


def test_a_small_corpus_is_shuffled_differently_in_each_epoch():
    which, windows = Blend([mock(10**6), mock(20)], [9, 1], seed=5).locate(np.arange(8000))
    epochs = windows[which == 1].reshape(-1, 20)
    assert len(epochs) == 40
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 40


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
