from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rampcli.data.corpus import Cut, TokenCorpus
from rampcli.data.files import parts_of
from rampcli.data.sources import open_corpora
from small_corpora import config, numbered, token_corpus, tokens_of, write_files

SPLIT = [8, 1, 1]


@given(
    lengths=st.lists(st.integers(0, 6), max_size=40),
    split=st.lists(
        st.sampled_from([0, 1, 2, 9, 98, 0.1, 0.005, 1e-7]), min_size=3, max_size=3
    ).filter(lambda split: split[0] > 0),
    unit=st.sampled_from([1, 2, 4]),
)
@example(lengths=[], split=[98, 1, 1], unit=2)
@example(lengths=[3], split=[98, 1, 1], unit=2)
@example(lengths=[2] * 10, split=[0.7, 0.2, 0.1], unit=2)
def test_parts_are_consecutive_cover_the_corpus_and_cut_only_a_single_document(
    lengths, split, unit
):
    starts = np.cumsum([0, *lengths])
    whole = TokenCorpus(
        name="whole",
        tokens=np.ones(starts[-1], dtype=np.uint8),
        documents=starts[:-1] * unit,
        unit=unit,
        first=0,
        end=int(starts[-1]),
        cut=Cut(sequence_length=1, vocab_size=9),
        contents="whole",
    )
    parts = parts_of(whole, split)
    assert [parts[0].first, parts[-1].end] == [0, starts[-1]]
    assert all(one.end == other.first for one, other in pairwise(parts))
    shares = [Fraction(str(share)) for share in split]
    for number, part in enumerate(parts):
        places = range(lengths[0] + 1) if len(lengths) == 1 else [int(start) for start in starts]
        exactly = (len(places) - 1) * sum(shares[: number + 1]) / sum(shares)
        near = [
            place for count, place in enumerate(places) if abs(count - exactly) <= Fraction(1, 2)
        ]
        assert part.end in near


@given(
    split=st.lists(st.integers(1, 20), min_size=3, max_size=3),
    scale=st.sampled_from([0.01, 0.1, 7]),
)
def test_shares_of_a_split_may_have_any_sum(split, scale):
    documents = np.ones((90, 1), dtype=np.uint8)
    whole = token_corpus(documents, cut=Cut(sequence_length=1, vocab_size=9))
    scaled = [round(share * scale, 2) for share in split]
    assert [part.end for part in parts_of(whole, scaled)] == [
        part.end for part in parts_of(whole, split)
    ]


@pytest.mark.parametrize(
    ("kind", "source"),
    [("<u2", "indexed"), ("<i4", "indexed"), ("<u1", "indexed"), (None, "text")],
    ids=str,
)
def test_training_and_validation_share_no_document_and_test_documents_are_not_read(
    tmp_path, kind, source
):
    if source == "indexed":
        path = write_files(tmp_path / "wiki", numbered(100), kind)
    else:
        path = str(tmp_path / "texts")
        (tmp_path / "texts").mkdir()
        for number in range(100):  # text has no zero bytes
            (tmp_path / "texts" / f"{number:03}.txt").write_bytes(bytes([number or 100] * 9))
    made = config(source, path=path, split=SPLIT, pad_last_window=True)
    training, validation = tokens_of(open_corpora(made))
    assert {number % 100 for number in training} == set(range(80))
    assert validation - {0} == set(range(80, 90))  # 0 is the padding


def test_each_corpus_of_a_blend_is_split_and_validation_has_the_same_blend(tmp_path):
    blend = [
        "3",
        write_files(tmp_path / "one", numbered(10)),
        "1",
        write_files(tmp_path / "two", numbered(20, first=100)),
    ]
    corpora = open_corpora(config(blend=blend, split=[5, 5, 0], sequence_length=8))
    assert tokens_of(corpora) == [{*range(5), *range(100, 110)}, {*range(5, 10), *range(110, 120)}]
    for blend in (corpora.training, corpora.validation[None]):
        which, _ = blend.assign(np.arange(400))
        assert np.bincount(which).tolist() == [300, 100]
    assert corpora.training.orders != corpora.validation[None].orders == [None, None]


def test_with_a_validation_corpus_both_corpora_are_read_whole(tmp_path):
    paths = (
        write_files(tmp_path / "one", numbered(10)),
        write_files(tmp_path / "two", numbered(4, first=100)),
    )
    corpora = open_corpora(
        config(path=paths[0], validation_path=paths[1], split=[1, 1, 1], sequence_length=1)
    )
    assert tokens_of(corpora) == [set(range(10)), set(range(100, 104))]


def test_a_validation_part_begins_with_a_document(tmp_path):
    path = write_files(tmp_path / "wiki", numbered(30, length=7))
    opened = open_corpora(config(path=path, document_mask=True, sequence_length=10))
    [training], [validation] = opened.training.corpora, opened.validation[None].corpora
    assert (training.first, training.end, validation.first, validation.end) == (0, 105, 105, 210)
    assert validation.read(np.array([0])).positions.tolist() == [[0, 1, 2, 3, 4, 5, 6, 0, 1, 2]]
