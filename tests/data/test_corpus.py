from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rampcli.data.corpus import IGNORED, PADDING, Cut, MockCorpus, TokenCorpus
from rampcli.errors import UsageError

VOCAB_SIZE = 60
CUT = Cut(sequence_length=4, vocab_size=VOCAB_SIZE)
MOCK = MockCorpus(cut=Cut(sequence_length=6, vocab_size=50), seed=3)


@dataclass(frozen=True)
class Drawn:
    """Documents, of which those in the range `part` make up a corpus."""

    documents: list[list[int]]
    part: tuple[int, int]
    unit: int
    cut: Cut

    @property
    def starts(self):
        return [sum(map(len, self.documents[:number])) for number in range(len(self.documents) + 1)]

    @property
    def text(self):
        return [token for document in self.documents for token in document]

    @property
    def bounds(self):
        return tuple(self.starts[number] for number in self.part)

    def corpus(self, **changes):
        first, end = self.bounds
        made = TokenCorpus(
            name="data/drawn",
            tokens=np.array(self.text, dtype="<u2" if self.unit == 2 else "<i4"),
            documents=np.array(self.starts[:-1], dtype=np.int64) * self.unit,
            unit=self.unit,
            first=first,
            end=end,
            cut=self.cut,
            contents="drawn",
        )
        return replace(made, **changes)

    def expected(self):
        """Yields the tokens, labels and positions of each window, computed slowly.

        The position of padding is None.
        """
        length, (first, end) = self.cut.sequence_length, self.bounds
        flat = [
            (token, number) for number, document in enumerate(self.documents) for token in document
        ][first:end]
        labels = max(0, len(flat) - 1)
        for window in range(labels // length + (self.cut.pad_last_window and labels % length > 0)):
            begin, rows = window * length, []
            for place in range(begin, begin + length):
                if place >= len(flat):
                    rows.append((PADDING, IGNORED, None))
                    continue
                document = flat[place][1]
                is_asked = place + 1 < len(flat) and (
                    flat[place + 1][1] == document
                    or not (self.cut.eod_mask_loss or self.cut.document_mask)
                )
                position = sum(flat[before][1] == document for before in range(begin, place))
                rows.append((flat[place][0], flat[place + 1][0] if is_asked else IGNORED, position))
            yield zip(*rows, strict=True)


@st.composite
def drawn(draw):
    documents = draw(st.lists(st.lists(st.integers(1, VOCAB_SIZE - 1), max_size=14), max_size=9))
    bounds = st.integers(0, len(documents))
    part = sorted([draw(bounds), draw(bounds)]) if draw(st.booleans()) else [0, len(documents)]
    switches = {
        name: draw(st.booleans()) for name in ("eod_mask_loss", "document_mask", "pad_last_window")
    }
    cut = Cut(sequence_length=draw(st.integers(1, 9)), vocab_size=VOCAB_SIZE, **switches)
    return Drawn(documents, tuple(part), draw(st.sampled_from([2, 4])), cut)


def of(documents, length=4, **cut):
    return Drawn(
        documents, (0, len(documents)), 2, Cut(sequence_length=length, vocab_size=VOCAB_SIZE, **cut)
    )


def everything(corpus):
    return corpus.read(np.arange(corpus.windows))


@given(drawn=drawn())
@example(drawn=of([]))
@example(drawn=of([], pad_last_window=True))
@example(drawn=of([[1]], pad_last_window=True))
@example(drawn=of([[5, 6, 7]], length=8))
@example(drawn=of([[5, 6, 7]], length=8, pad_last_window=True))
@example(drawn=of([[1, 2, 3, 4, 5]], document_mask=True))
@example(
    drawn=of([[1, 2, 3, 4], [], [5], [], [6], [7, 8]], document_mask=True, pad_last_window=True)
)
@example(drawn=of([[1, 2], [], [3, 4]], length=1, eod_mask_loss=True))
@example(
    drawn=Drawn(
        [[1, 2, 3], [4, 5, 6], [7, 8, 9]],
        (1, 2),
        2,
        replace(CUT, pad_last_window=True, document_mask=True),
    )
)
def test_windows_equal_those_of_a_reference_that_visits_each_place(drawn):
    corpus, expected = drawn.corpus(), [list(window) for window in drawn.expected()]
    assert corpus.windows == len(expected)
    if expected:
        read, (tokens, labels, positions) = everything(corpus), zip(*expected, strict=True)
        assert read.tokens.tolist() == [list(row) for row in tokens]
        assert read.labels.tolist() == [list(row) for row in labels]
        assert read.valid_tokens == np.count_nonzero(np.array(labels) != IGNORED)
        assert (read.positions is not None) == drawn.cut.document_mask
        if read.positions is not None:
            known = np.array([[place is not None for place in row] for row in positions])
            assert read.positions[known].tolist() == [
                place for row in positions for place in row if place is not None
            ]
            assert ((read.positions >= 0) & (read.positions < drawn.cut.sequence_length)).all()
        assert read.tokens.dtype == read.labels.dtype == np.int64
        assert read.tokens.shape == read.labels.shape == (len(expected), drawn.cut.sequence_length)


def test_positions_restart_at_each_document_and_at_the_start_of_a_sample():
    read = everything(
        of([[1] * 3, [2], [], [3] * 6], length=4, document_mask=True, pad_last_window=True).corpus()
    )
    assert read.tokens.tolist() == [[1, 1, 1, 2], [3, 3, 3, 3], [3, 3, 0, 0]]
    assert read.positions[:2].tolist() == [[0, 1, 2, 0], [0, 1, 2, 3]]
    assert read.positions[2, :2].tolist() == [0, 1]
    assert read.labels.tolist() == [[1, 1, IGNORED, IGNORED], [3, 3, 3, 3], [3, *[IGNORED] * 3]]


@pytest.mark.parametrize("pad_last_window", [False, True])
@pytest.mark.parametrize("missing", [1, 3, 6, 10])
def test_tokens_that_end_before_the_corpus_are_refused_instead_of_padded(missing, pad_last_window):
    corpus = of([[1] * 10], pad_last_window=pad_last_window).corpus()
    short = replace(corpus, tokens=corpus.tokens[: 10 - missing])
    for window in range(corpus.windows):
        with pytest.raises(ValueError, match=f"has {10 - missing} tokens, not 10"):
            short.read(np.array([window]))


@given(drawn=drawn(), data=st.data())
def test_a_window_does_not_depend_on_the_windows_read_with_it(drawn, data):
    corpus = drawn.corpus()
    if corpus.windows:
        chosen = data.draw(st.lists(st.integers(0, corpus.windows - 1), min_size=1, max_size=6))
        some, whole = corpus.read(np.array(chosen)), everything(corpus)
        assert np.array_equal(some.tokens, whole.tokens[chosen])
        assert np.array_equal(some.labels, whole.labels[chosen])
        if drawn.cut.document_mask:
            assert np.array_equal(some.positions, whole.positions[chosen])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("source", ["tokens", "mock"])
def test_samples_are_contiguous_so_that_they_are_copied_to_a_gpu_at_once(source, masked):
    cut = replace(CUT, document_mask=masked)
    corpus = of([[1] * 20], document_mask=masked).corpus()
    if source == "mock":
        corpus = MockCorpus(cut=cut, seed=3)
    samples = corpus.read(np.array([0, 2]))
    planes = [samples.tokens, samples.labels, *([samples.positions] if masked else [])]
    assert all(plane.flags.c_contiguous for plane in planes)


@pytest.mark.parametrize("token", [VOCAB_SIZE, VOCAB_SIZE + 1, 2**31 - 1, -1])
@pytest.mark.parametrize("place", [0, 3, 4, 8])
def test_a_token_that_cannot_be_embedded_is_refused_when_its_window_is_read(token, place):
    tokens = np.ones(9, dtype=np.int32)
    tokens[place] = token
    corpus = of([[1] * 9]).corpus(tokens=tokens, name="data/wiki")
    for window in range(2):
        if 4 * window <= place <= 4 * window + 4:
            with pytest.raises(UsageError) as refusal:
                corpus.read(np.array([window]))
            assert f"data/wiki holds token {token}," in refusal.value.message
            assert refusal.value.keys == ("model.vocab_size", "data.path", "data.blend")
        else:
            corpus.read(np.array([window]))


@pytest.mark.parametrize("kind", ["<i1", "<i2", "<i4", "<i8"])
def test_negative_tokens_are_refused_whatever_their_type(kind):
    vocabulary = replace(CUT, vocab_size=2**31)  # larger than most types
    tokens = np.array([1, 1, -2, 1, 1], dtype=kind)
    corpus = of([[1] * 5]).corpus(tokens=tokens, cut=vocabulary)
    with pytest.raises(UsageError, match="holds token -2,"):
        corpus.read(np.array([0]))


def test_the_largest_token_of_the_vocabulary_and_the_smallest_are_read():
    assert everything(of([[0, VOCAB_SIZE - 1] * 5]).corpus()).tokens.max() == VOCAB_SIZE - 1


def test_files_are_checked_before_every_read():
    def refuse():
        raise UsageError("changed")

    with pytest.raises(UsageError, match="changed"):
        of([[1] * 9]).corpus(check_unchanged=refuse).read(np.array([0]))


def test_the_fingerprint_of_a_corpus_is_stable_and_independent_of_its_path():
    corpus = of([[1] * 9]).corpus()
    assert (
        corpus.fingerprint
        == of([[1] * 9]).corpus().fingerprint
        == replace(corpus, name="elsewhere").fingerprint
    )


@pytest.mark.parametrize(
    "change",
    [
        {"contents": "other"},
        {"first": 1},
        {"end": 8},
        {"cut": replace(CUT, sequence_length=5)},
        {"cut": replace(CUT, pad_last_window=True)},
    ],
    ids=str,
)
def test_a_corpus_with_different_windows_has_another_fingerprint(change):
    assert of([[1] * 9]).corpus(**change).fingerprint != of([[1] * 9]).corpus().fingerprint


@given(windows=st.lists(st.integers(0, 2**40 - 1), min_size=1, max_size=6))
def test_a_mock_window_depends_only_on_its_number(windows):
    read = MOCK.read(np.array(windows))
    assert read.tokens.shape == read.labels.shape == (len(windows), 6)
    assert read.tokens.dtype == read.labels.dtype == np.int64
    for row, window in enumerate(windows):
        alone = MOCK.read(np.array([window]))
        assert np.array_equal(read.tokens[row], alone.tokens[0])
        assert np.array_equal(read.labels[row], alone.labels[0])


def test_mock_labels_are_the_next_tokens_and_none_is_ignored():
    read = MOCK.read(np.arange(20))
    assert np.array_equal(read.tokens[:, 1:], read.labels[:, :-1])
    assert read.valid_tokens == 20 * 6
    assert read.positions is None


def test_a_mock_sample_is_one_document():
    masked = replace(MOCK, cut=replace(MOCK.cut, document_mask=True)).read(np.arange(3))
    assert masked.positions.tolist() == [list(range(6))] * 3
    assert np.array_equal(masked.tokens, MOCK.read(np.arange(3)).tokens)


def test_mock_tokens_cover_the_vocabulary_and_stay_within_it():
    read = MOCK.read(np.arange(200))
    assert set(np.unique(read.tokens)) == set(np.unique(read.labels)) == set(range(50))


@pytest.mark.parametrize(
    "change", [{"seed": 4}, {"vocab_size": 51}, {"sequence_length": 7}], ids=str
)
def test_another_mock_corpus_reads_differently_and_has_another_fingerprint(change):
    facts = {"seed": 3, "vocab_size": 50, "sequence_length": 6} | change
    other = MockCorpus(seed=facts.pop("seed"), cut=Cut(**facts))
    assert other.fingerprint != MOCK.fingerprint
    assert not np.array_equal(other.read(np.arange(20)).tokens, MOCK.read(np.arange(20)).tokens)


def test_the_largest_mock_seeds_give_different_tokens():
    last, before = (replace(MOCK, seed=2**64 - back) for back in (1, 2))
    assert not np.array_equal(last.read(np.arange(20)).tokens, before.read(np.arange(20)).tokens)
