import os
import time
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from rampcli.data.corpus import Cut, TokenCorpus
from rampcli.data.files import parts_of
from rampcli.data.indexed import (
    HEADER,
    MAGIC,
    VERSION,
    bin_of,
    idx_of,
    tokenizer_of,
    write_index,
)
from rampcli.data.sources import open_corpora, read_file_facts
from rampcli.data.texts import read_texts
from rampcli.errors import UsageError
from small_corpora import (
    VOCAB_SIZE,
    config,
    numbered,
    refusal,
    token_corpus,
    tokens_of,
    words,
    write_files,
)


def test_text_is_read_as_bytes_file_by_file_in_the_order_of_names(tmp_path):
    for name, content in {
        "b.txt": "zwei",
        "a.txt": "één",
        "c/d.md": "drei",
        ".hidden": "x",
        "empty": "",
    }.items():
        (tmp_path / "texts" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / name).write_text(content, encoding="utf-8")
    assert read_texts(tmp_path / "texts") == ["één", "zwei", "drei", ""]
    assert read_texts(tmp_path / "texts" / "a.txt") == ["één"]
    corpora = open_corpora(
        config(
            "text",
            path=str(tmp_path / "texts"),
            split=[1, 0, 0],
            sequence_length=1,
            document_mask=True,
        )
    )
    [corpus] = corpora.training.corpora
    assert corpus.tokens.tobytes() == "éénzweidrei".encode()
    assert list(corpus.documents) == [0, 5, 9]
    assert Tokenizer.from_str(corpora.tokenizer).decode(list(corpus.tokens)) == "éénzweidrei"


def test_characters_of_all_corpora_are_tokens_in_the_order_of_code_points(tmp_path):
    for name, content in {"train": "banana", "held_out": "cab ü"}.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    made = config(
        "text",
        path=str(tmp_path / "train"),
        validation_path=str(tmp_path / "held_out"),
        tokenizer="chars",
    )
    corpora = open_corpora(made)
    assert corpora.training.corpora[0].tokens.tolist() == [2, 1, 4, 1, 4, 1]
    assert corpora.validation[None].corpora[0].tokens.tolist() == [3, 1, 2, 0, 5]
    assert Tokenizer.from_str(corpora.tokenizer).decode([3, 1, 2, 0, 5]) == "cab ü"


def encoded(tmp_path, text, tokenizer):
    """Returns the settings of a corpus of one text with a tokenizer."""
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text").write_text(text)
    paths = {"path": str(tmp_path / "text"), "tokenizer": str(tmp_path / "tokenizer.json")}
    return config("text", split=[1, 0, 0], **paths)


def test_text_that_looks_like_a_special_token_stays_text(tmp_path):
    """`rampcli data build` does the same."""
    tokenizer = words("the", "endoftext")
    tokenizer.add_special_tokens(["<|endoftext|>"])
    [corpus] = open_corpora(encoded(tmp_path, "the <|endoftext|> the", tokenizer)).training.corpora
    assert tokenizer.token_to_id("<|endoftext|>") == 3
    assert corpus.tokens.tolist() == [1, 0, 2, 0, 1]


def test_moved_files_have_the_same_fingerprint_and_different_ones_another(tmp_path):
    one, same = (write_files(tmp_path / folder / "wiki", numbered(10)) for folder in ("a", "b"))
    other = write_files(tmp_path / "c" / "wiki", [*numbered(9), [8] * 9])
    cut_elsewhere = write_files(
        tmp_path / "d" / "wiki", [[*numbered(2)[0], *numbered(2)[1]], *numbered(10)[2:]]
    )
    prints = [
        open_corpora(config(path=path)).training.fingerprints
        for path in (one, same, other, cut_elsewhere)
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


@pytest.mark.parametrize("place", [0, 0.25, 0.5, 1])
def test_any_changed_token_of_a_small_corpus_changes_its_fingerprint(tmp_path, place):
    tokens = list(range(200)) * 20
    write_files(tmp_path / "one", [tokens])
    tokens[int(place * (len(tokens) - 1))] += 1
    write_files(tmp_path / "two", [tokens])
    one, other = (
        open_corpora(config(path=str(tmp_path / name), split=[1, 0, 0])).training.fingerprints
        for name in ("one", "two")
    )
    assert one != other


def test_missing_text_is_refused_before_anything_starts(tmp_path):
    made = config("text", path=str(tmp_path / "missing"))
    with pytest.raises(UsageError, match=f"cannot read {tmp_path / 'missing'}: No such") as refused:
        read_file_facts(made)
    assert refused.value.keys == refusal(made).keys == ("data.path",)


@pytest.mark.parametrize("tokenizer", ["nowhere.json", "empty"])
def test_a_missing_tokenizer_of_text_is_refused_before_anything_starts(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "empty").mkdir()
    path = str(tmp_path / "a.txt")
    with pytest.raises(UsageError) as refused:
        read_file_facts(config("text", path=path, tokenizer=str(tmp_path / tokenizer)))
    assert refused.value.keys == ("data.tokenizer",)


def test_text_that_is_neither_a_file_nor_a_folder_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", "/dev/zero"):
        made = config("text", path=str(path))
        with pytest.raises(UsageError, match=f"cannot read {path}: not a regular file"):
            read_file_facts(made)


@pytest.mark.parametrize("key", ["path", "blend", "validation_path"])
@pytest.mark.parametrize("source", ["indexed", "text"])
def test_a_missing_file_is_reported_with_the_setting_that_names_it(tmp_path, source, key):
    path = (
        write_files(tmp_path / "wiki", numbered(10))
        if source == "indexed"
        else str(tmp_path / "text")
    )
    (tmp_path / "text").write_text("text")
    gone = str(tmp_path / "gone")
    given = {
        "path": {"path": gone},
        "blend": {"blend": ["1", path, "1", gone]},
        "validation_path": {"path": path, "validation_path": gone},
    }
    refused = refusal(config(source, **given[key]))
    assert refused.keys == (f"data.{key}",)
    assert gone in refused.message


@pytest.mark.parametrize("missing", ["bin", "idx"])
def test_missing_indexed_files_are_refused_by_name(tmp_path, missing):
    path = write_files(tmp_path / "wiki", numbered(10))
    (tmp_path / f"wiki.{missing}").unlink()
    for look in (open_corpora, read_file_facts):
        with pytest.raises(UsageError) as refused:
            look(config(path=path))
        assert refused.value.message == f"cannot read {path}.{missing}: No such file or directory"


def test_a_folder_is_refused_as_an_indexed_file(tmp_path):
    path = write_files(tmp_path / "wiki", numbered(10))
    (tmp_path / "wiki.bin").unlink()
    (tmp_path / "wiki.bin").mkdir()
    with pytest.raises(UsageError) as refused:
        open_corpora(config(path=path))
    assert str(tmp_path / "wiki.bin") in refused.value.message


def test_a_tokenizer_larger_than_the_vocabulary_is_refused_with_its_size(tmp_path):
    path = write_files(
        tmp_path / "wiki", numbered(10), manifest={"vocab_size": 1234, "largest_token": 9}
    )
    refused = refusal(config(path=path))
    assert f"the tokenizer of {path} has 1,234 tokens" in refused.message
    assert (refused.keys, refused.remedy) == (
        ("model.vocab_size",),
        "model.vocab_size=1234 or null",
    )
    (tmp_path / "text").write_text("text")
    made = config("text", path=str(tmp_path / "text"))
    made.model.vocab_size = 255
    assert f"the tokenizer of {tmp_path / 'text'} has 256 tokens" in refusal(made).message


def test_a_tokenizer_with_gaps_needs_a_vocabulary_larger_than_its_largest_token(tmp_path):
    made = encoded(tmp_path, "the cat the cat the cat", words(the=1, cat=VOCAB_SIZE))
    assert refusal(made).remedy == f"model.vocab_size={VOCAB_SIZE + 1} or null"


@pytest.mark.parametrize(
    "manifest", [None, {"largest_token": 9}], ids=["no manifest", "a false manifest"]
)
def test_a_token_beyond_the_vocabulary_is_refused_when_read_whatever_the_manifest_says(
    tmp_path, manifest
):
    path = write_files(tmp_path / "wiki", [[1] * 9, [VOCAB_SIZE] * 9], manifest=manifest)
    training = open_corpora(config(path=path, split=[1, 0, 0])).training
    with pytest.raises(UsageError, match=f"{path} holds token 300,"):
        training.read(np.arange(4))


def test_a_corpus_without_tokens_is_refused(tmp_path):
    path = write_files(tmp_path / "empty", [[]], manifest={"largest_token": None})
    refused = refusal(config(path=path, split=[1, 0, 0]))
    assert f"the training corpus of {path} has 0 tokens" in refused.message


@pytest.mark.parametrize(
    "other", [numbered(11), numbered(9, length=10)], ids=["more tokens", "fewer documents"]
)
def test_a_manifest_of_another_build_is_refused(tmp_path, other):
    path = write_files(tmp_path / "wiki", numbered(10), manifest={"largest_token": 9})
    write_files(tmp_path / "wiki", other)
    assert refusal(config(path=path)).message == f"{path}.json does not belong to {path}.bin"


def test_corpora_of_a_blend_must_have_the_same_tokenizer(tmp_path):
    one, two = words("a", "b").to_str(), words("a", "c").to_str()
    paths = [
        write_files(tmp_path / name, numbered(10), tokenizer=words)
        for name, words in (("one", one), ("two", two))
    ]
    refused = refusal(config(blend=["1", paths[0], "1", paths[1]]))
    assert (
        refused.message
        == f"{paths[1]}.tokenizer.json is a different tokenizer than {paths[0]}.tokenizer.json"
    )
    assert f"rampcli data build --tokenizer {paths[0]}.tokenizer.json" in refused.remedy
    tokenizer_of(tmp_path / "two").unlink()
    assert open_corpora(config(blend=["1", paths[1], "1", paths[0]])).tokenizer == one


def replaced(prefix):
    other = prefix.with_name("other.bin")
    other.write_bytes(bin_of(prefix).read_bytes())
    os.replace(other, bin_of(prefix))


def truncated(prefix):
    os.truncate(bin_of(prefix), 10)


def written_to(prefix):
    with bin_of(prefix).open("r+b") as file:
        file.write(b"\x01")
    os.utime(bin_of(prefix), ns=(1, 1))


@pytest.mark.parametrize(
    "change", [replaced, truncated, written_to, lambda prefix: bin_of(prefix).unlink()]
)
def test_a_file_that_changes_during_training_gives_one_error(tmp_path, change):
    path = write_files(tmp_path / "wiki", numbered(100))
    training = open_corpora(config(path=path)).training
    training.read(np.arange(4))
    change(tmp_path / "wiki")
    for _ in range(2):
        with pytest.raises(UsageError, match=r"wiki\.bin") as refused:
            training.read(np.arange(4))
    assert refused.value.message in (
        f"{path}.bin has changed since it was opened",
        f"cannot read {path}.bin: No such file or directory",
    )


def test_opening_a_corpus_takes_no_longer_if_its_documents_are_longer(
    tmp_path,
):
    def write_sparse(name, tokens):
        lengths = np.full(256, tokens // 256)
        bin_of(tmp_path / name).touch()
        os.truncate(bin_of(tmp_path / name), 2 * tokens)
        write_index(idx_of(tmp_path / name), np.dtype("<u2"), lambda: iter([lengths]))
        return config(path=str(tmp_path / name), sequence_length=1024)

    def seconds(made):
        began = time.process_time()
        assert open_corpora(made).training.read(np.arange(3)).tokens.shape == (3, 1024)
        return time.process_time() - began

    small, large = write_sparse("small", 2**19), write_sparse("large", 2**29)
    assert os.stat(bin_of(tmp_path / "large")).st_size == 2**30
    times = [(seconds(small), seconds(large)) for _ in range(15)]
    one, other = (min(column) for column in zip(*times, strict=True))
    assert other < 3 * one


@pytest.mark.parametrize(
    "boundaries", [[0, 1, 2, 3], [0, 2, 3], [0, 3], [0, 0, 2, 3, 3], [0, 0, 2, 3]], ids=str
)
def test_a_document_may_have_several_sequences_or_none_as_in_megatron(tmp_path, boundaries):
    np.arange(20, dtype="<u2").tofile(bin_of(tmp_path / "wiki"))
    with idx_of(tmp_path / "wiki").open("wb") as file:
        file.write(HEADER.pack(MAGIC, VERSION, 8, 3, len(boundaries)))
        for numbers, kind in (([7, 5, 8], "<i4"), ([0, 14, 24], "<i8"), (boundaries, "<i8")):
            file.write(np.array(numbers, dtype=kind).tobytes())
    opened = open_corpora(
        config(path=str(tmp_path / "wiki"), split=[1, 0, 0], sequence_length=19, document_mask=True)
    )
    starts = {[0, 7, 12, 20][sequence] for sequence in boundaries} - {20}
    expected = [place - max(start for start in starts if start <= place) for place in range(19)]
    assert opened.training.read(np.array([0])).positions.tolist() == [expected]


def test_named_corpora_for_validation_change_neither_the_tokens_nor_what_is_trained_on(tmp_path):
    for name, content in {"train": "banana", "other": "nab"}.items():
        (tmp_path / name).write_text(content)
    values = {"path": str(tmp_path / "train"), "tokenizer": "chars", "sequence_length": 1}
    split = open_corpora(config("text", **values))
    named = open_corpora(config("text", **values, validation={"other": str(tmp_path / "other")}))
    assert named.training.fingerprints == split.training.fingerprints
    assert named.tokenizer == split.tokenizer
    assert list(named.validation) == ["other"]
    assert named.validation["other"].corpora[0].tokens.tolist() == [2, 0, 1]


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
