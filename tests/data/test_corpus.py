import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rampcli.data.corpus import IGNORED, DocumentCorpus, MockCorpus

DOCUMENTS = st.lists(st.binary(max_size=20), max_size=8)
LENGTHS = st.integers(1, 9)
MOCK = MockCorpus(vocab_size=50, sequence_length=6, seed=3)


def everything(corpus):
    return corpus.read(np.arange(corpus.windows))


@given(documents=DOCUMENTS, length=LENGTHS)
@example(documents=[], length=4)
@example(documents=[b"abcde"], length=4)
@example(documents=[b"abcd"], length=4)
def test_windows_lie_end_to_end_and_labels_are_the_tokens_one_further(documents, length):
    corpus, text = DocumentCorpus.of(documents, sequence_length=length), b"".join(documents)
    assert corpus.windows == max(0, (len(text) - 1) // length)
    if corpus.windows:
        tokens, labels = everything(corpus)
        assert tokens.shape == labels.shape == (corpus.windows, length)
        assert tokens.dtype == labels.dtype == np.int64
        read = corpus.windows * length
        assert bytes(tokens.ravel().astype(np.uint8)) == text[:read]
        kept = labels.ravel() != IGNORED
        assert np.array_equal(labels.ravel()[kept], np.frombuffer(text[1 : read + 1], dtype=np.uint8)[kept])


@given(documents=DOCUMENTS, length=LENGTHS)
@example(documents=[b"ab", b"", b"cd"], length=1)
def test_the_first_token_of_a_document_is_never_asked_for_and_every_other_is(documents, length):
    corpus = DocumentCorpus.of(documents, sequence_length=length)
    if corpus.windows:
        firsts = np.cumsum([0, *(len(document) for document in documents if document)])[:-1]
        ignored = np.flatnonzero(everything(corpus)[1].ravel() == IGNORED) + 1
        assert ignored.tolist() == [first for first in firsts if 0 < first <= corpus.windows * length]


@given(documents=DOCUMENTS, length=LENGTHS, data=st.data())
def test_a_window_is_read_the_same_alone_and_among_others(documents, length, data):
    corpus = DocumentCorpus.of(documents, sequence_length=length)
    if corpus.windows:
        chosen = data.draw(st.lists(st.integers(0, corpus.windows - 1), min_size=1, max_size=6))
        tokens, labels = corpus.read(np.array(chosen))
        whole_tokens, whole_labels = everything(corpus)
        assert np.array_equal(tokens, whole_tokens[chosen])
        assert np.array_equal(labels, whole_labels[chosen])


def test_a_corpus_has_the_same_fingerprint_each_time():
    documents = [b"def a():", b"    return 1"]
    assert DocumentCorpus.of(documents, sequence_length=4).fingerprint == DocumentCorpus.of(list(documents), sequence_length=4).fingerprint


@pytest.mark.parametrize(
    ("documents", "length"),
    [
        ([b"def a():", b"    return 2"], 4),
        ([b"def a():", b"    return 1"], 5),
        ([b"    return 1", b"def a():"], 4),
        ([b"def a(): ", b"   return 1"], 4),
        ([b"def a():    return 1"], 4),
    ],
    ids=["other text", "other length", "other order", "other boundary", "no boundary"],
)
def test_a_corpus_that_reads_differently_has_another_fingerprint(documents, length):
    corpus = DocumentCorpus.of([b"def a():", b"    return 1"], sequence_length=4)
    assert DocumentCorpus.of(documents, sequence_length=length).fingerprint != corpus.fingerprint


@given(windows=st.lists(st.integers(0, 2**40 - 1), min_size=1, max_size=6))
def test_a_mock_window_depends_on_its_number_alone(windows):
    tokens, labels = MOCK.read(np.array(windows))
    assert tokens.shape == labels.shape == (len(windows), 6)
    for row, window in enumerate(windows):
        alone_tokens, alone_labels = MOCK.read(np.array([window]))
        assert np.array_equal(tokens[row], alone_tokens[0])
        assert np.array_equal(labels[row], alone_labels[0])


def test_mock_labels_are_the_tokens_one_further():
    tokens, labels = MOCK.read(np.arange(20))
    assert np.array_equal(tokens[:, 1:], labels[:, :-1])


def test_mock_tokens_fill_the_vocabulary_and_stay_inside():
    tokens, labels = MOCK.read(np.arange(200))
    assert set(np.unique(tokens)) == set(np.unique(labels)) == set(range(50))


@pytest.mark.parametrize("change", [{"seed": 4}, {"vocab_size": 51}, {"sequence_length": 7}], ids=str)
def test_another_mock_corpus_reads_differently_and_has_another_fingerprint(change):
    other = MockCorpus(**{"vocab_size": 50, "sequence_length": 6, "seed": 3} | change)
    assert other.fingerprint != MOCK.fingerprint
    assert not np.array_equal(other.read(np.arange(20))[0], MOCK.read(np.arange(20))[0])


def test_mock_seeds_as_large_as_generators_take_are_told_apart():
    last, before = (MockCorpus(vocab_size=50, sequence_length=6, seed=2**64 - back) for back in (1, 2))
    assert not np.array_equal(last.read(np.arange(20))[0], before.read(np.arange(20))[0])
