import json
import os
import time
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from rampcli.config.choices import DataSource
from rampcli.config.schema import Config
from rampcli.data import files
from rampcli.data.corpus import IGNORED, Cut, TokenCorpus
from rampcli.data.files import parts_of, texts_of
from rampcli.data.indexed import (
    HEADER,
    MAGIC,
    VERSION,
    bin_of,
    idx_of,
    manifest_of,
    tokenizer_of,
    write_index,
)
from rampcli.data.sources import check_files, open_corpora
from rampcli.errors import UsageError

VOCAB_SIZE = 300
SPLIT = [8, 1, 1]


def config(source=DataSource.indexed, **data):
    made = Config()
    made.data.source, made.data.sequence_length, made.data.split = source, 4, [1, 1, 0]
    made.model.vocab_size, made.trainer.val_samples = VOCAB_SIZE, 0
    for name, value in data.items():
        setattr(made.data, name, value)
    return made


def write_files(prefix, documents, kind="<u2", manifest=None, tokenizer=None):
    """Writes documents of tokens as PREFIX.bin and PREFIX.idx; returns PREFIX."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    np.array([token for document in documents for token in document], dtype=kind).tofile(
        bin_of(prefix)
    )
    lengths = np.array([len(document) for document in documents], dtype=np.int64)
    write_index(idx_of(prefix), np.dtype(kind), lambda: iter([lengths]))
    if manifest is not None:
        manifest_of(prefix).write_text(json.dumps(manifest_for(prefix, documents) | manifest))
    if tokenizer is not None:
        tokenizer_of(prefix).write_text(tokenizer)
    return str(prefix)


def manifest_for(prefix, documents):
    """Returns the manifest that `rampcli data build` would write for these files."""
    file = {"bytes": bin_of(prefix).stat().st_size, "sha256": ""}
    counts = {
        "documents": len(documents),
        "tokens": sum(map(len, documents)),
        "empty": 0,
        "skipped": 0,
        "text_bytes": 0,
    }
    options = {"inputs": [], "tokenizer": "words", "text_key": "text", "on_bad_record": "stop"}
    absent = dict.fromkeys(["eod", "eod_token", "tokenizer_sha256", "eod_option", "largest_token"])
    files = {"files": dict.fromkeys(["bin", "idx", "tokenizer"], file)}
    return {"format": 1, "vocab_size": VOCAB_SIZE} | counts | options | absent | files


def numbered(documents, length=9, first=0):
    """Returns documents that each repeat one token, so that a token identifies its document."""
    return [[first + number] * length for number in range(documents)]


def words(*vocabulary, **numbers):
    numbers = (
        {"[UNK]": 0} | {word: number for number, word in enumerate(vocabulary, start=1)} | numbers
    )
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def tokens_of(corpora):
    """Returns the tokens that a run trains on, and those that it validates on."""
    found = []
    for blend in (corpora.training, corpora.validation):
        read = [corpus.read(np.arange(corpus.windows)) for corpus in blend.corpora]
        found.append(
            {
                int(token)
                for samples in read
                for token in np.unique([samples.tokens, samples.labels])
                if token != IGNORED
            }
        )
    return found


def refusal(made):
    with pytest.raises(UsageError) as refused:
        open_corpora(made)
    return refused.value


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
def test_parts_are_whole_documents_or_pieces_of_a_single_one_that_follow_one_another_and_are_all(
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
def test_shares_of_a_split_need_not_sum_to_a_hundred(split, scale):
    whole = TokenCorpus(
        name="whole",
        tokens=np.ones(90, dtype=np.uint8),
        documents=np.arange(90),
        first=0,
        end=90,
        cut=Cut(sequence_length=1, vocab_size=9),
        contents="whole",
    )
    scaled = [round(share * scale, 2) for share in split]
    assert [part.end for part in parts_of(whole, scaled)] == [
        part.end for part in parts_of(whole, split)
    ]


@pytest.mark.parametrize(
    ("kind", "source"),
    [("<u2", "indexed"), ("<i4", "indexed"), ("<u1", "indexed"), (None, "text")],
    ids=str,
)
def test_training_and_validation_share_no_document_and_nothing_reads_those_for_testing(
    tmp_path, kind, source
):
    if source == "indexed":
        path = write_files(tmp_path / "wiki", numbered(100), kind)
    else:
        path = str(tmp_path / "texts")
        (tmp_path / "texts").mkdir()
        for number in range(100):
            (tmp_path / "texts" / f"{number:03}.txt").write_bytes(bytes([number] * 9))
    made = config(DataSource(source), path=path, split=SPLIT, pad_last_window=True)
    training, validation = tokens_of(open_corpora(made))
    assert training == set(range(80))
    assert validation - {0} == set(range(80, 90))  # 0 is the padding


def test_each_corpus_of_a_blend_is_split_and_blended_alike_for_validation(tmp_path):
    blend = [
        "3",
        write_files(tmp_path / "one", numbered(10)),
        "1",
        write_files(tmp_path / "two", numbered(20, first=100)),
    ]
    corpora = open_corpora(config(blend=blend, split=[5, 5, 0], sequence_length=8))
    assert tokens_of(corpora) == [{*range(5), *range(100, 110)}, {*range(5, 10), *range(110, 120)}]
    for blend in (corpora.training, corpora.validation):
        which, _ = blend.assign(np.arange(400))
        assert np.bincount(which).tolist() == [300, 100]
    assert corpora.training.orders != corpora.validation.orders == [None, None]


def test_a_corpus_for_validation_is_read_whole_and_so_is_that_for_training(tmp_path):
    paths = (
        write_files(tmp_path / "one", numbered(10)),
        write_files(tmp_path / "two", numbered(4, first=100)),
    )
    corpora = open_corpora(
        config(path=paths[0], validation_path=paths[1], split=[1, 1, 1], sequence_length=1)
    )
    assert tokens_of(corpora) == [set(range(10)), set(range(100, 104))]


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
    assert texts_of(tmp_path / "texts") == ["één", "zwei", "drei", ""]
    assert texts_of(tmp_path / "texts" / "a.txt") == ["één"]
    corpora = open_corpora(
        config(
            DataSource.text,
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


def test_files_in_hidden_folders_are_hidden_too(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "index").write_bytes(b"\xff\xfe")
    (tmp_path / "a.txt").write_text("text")
    assert texts_of(tmp_path) == ["text"]


def test_characters_of_all_corpora_are_tokens_in_the_order_of_code_points(tmp_path):
    for name, content in {"train": "banana", "held_out": "cab ü"}.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    made = config(
        DataSource.text,
        path=str(tmp_path / "train"),
        validation_path=str(tmp_path / "held_out"),
        tokenizer="chars",
    )
    corpora = open_corpora(made)
    assert corpora.training.corpora[0].tokens.tolist() == [2, 1, 4, 1, 4, 1]
    assert corpora.validation.corpora[0].tokens.tolist() == [3, 1, 2, 0, 5]
    assert Tokenizer.from_str(corpora.tokenizer).decode([3, 1, 2, 0, 5]) == "cab ü"


def test_text_is_read_with_a_tokenizer_of_the_users_own(tmp_path):
    words("the", "cat", "sat").save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text").write_text("the cat sat the cat")
    made = config(
        DataSource.text,
        path=str(tmp_path / "text"),
        split=[1, 0, 0],
        tokenizer=str(tmp_path / "tokenizer.json"),
    )
    [corpus] = open_corpora(made).training.corpora
    assert corpus.tokens.tolist() == [1, 2, 3, 1, 2]


def test_what_reads_like_a_special_token_in_a_text_is_ordinary_text(tmp_path):
    """`rampcli data build` does the same."""
    tokenizer = words("the", "endoftext")
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text").write_text("the <|endoftext|> the")
    made = config(
        DataSource.text,
        path=str(tmp_path / "text"),
        split=[1, 0, 0],
        tokenizer=str(tmp_path / "tokenizer.json"),
    )
    [corpus] = open_corpora(made).training.corpora
    assert tokenizer.token_to_id("<|endoftext|>") == 3
    assert corpus.tokens.tolist() == [1, 0, 2, 0, 1]


def test_the_same_files_elsewhere_are_the_same_corpus_and_others_are_not(tmp_path):
    one, same = (write_files(tmp_path / folder / "wiki", numbered(10)) for folder in ("a", "b"))
    other = write_files(tmp_path / "c" / "wiki", [*numbered(9), [8] * 9])
    cut_elsewhere = write_files(
        tmp_path / "d" / "wiki", [[*numbered(2)[0], *numbered(2)[1]], *numbered(10)[2:]]
    )
    prints = [
        open_corpora(config(path=path)).training.fingerprint
        for path in (one, same, other, cut_elsewhere)
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


@pytest.mark.parametrize("place", [0, 0.25, 0.5, 1])
def test_a_token_that_is_another_in_a_small_corpus_makes_it_another_one(tmp_path, place):
    tokens = list(range(200)) * 20
    write_files(tmp_path / "one", [tokens])
    tokens[int(place * (len(tokens) - 1))] += 1
    write_files(tmp_path / "two", [tokens])
    one, other = (
        open_corpora(config(path=str(tmp_path / name), split=[1, 0, 0])).training.fingerprint
        for name in ("one", "two")
    )
    assert one != other


def test_text_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "binary").write_bytes(b"x" * 5000 + b"\xff")
    refused = refusal(config(DataSource.text, path=str(tmp_path)))
    assert refused.message == f"{tmp_path / 'binary'} is not text: byte 5,000 is not UTF-8"
    assert (refused.keys, refused.remedy) == (("data.path",), "text files only")


def test_text_that_is_not_there_is_refused_before_anything_starts(tmp_path):
    made = config(DataSource.text, path=str(tmp_path / "missing"))
    assert refusal(made).message == f"cannot read {tmp_path / 'missing'}: No such file or directory"
    with pytest.raises(UsageError, match=f"{tmp_path / 'missing'} does not exist") as refused:
        check_files(made)
    assert refused.value.keys == refusal(made).keys == ("data.path",)


def test_text_that_is_neither_a_file_nor_a_folder_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", "/dev/zero"):
        made = config(DataSource.text, path=str(path))
        assert refusal(made).message == f"cannot read {path}: not a regular file"
        with pytest.raises(UsageError, match=f"{path} is not a file or a folder"):
            check_files(made)


def test_a_folder_of_text_is_read_around_fifos_devices_and_links_that_lead_back(tmp_path):
    (tmp_path / "texts" / "below").mkdir(parents=True)
    (tmp_path / "texts" / "a.txt").write_text("text")
    os.mkfifo(tmp_path / "texts" / "fifo.txt")
    for name, target in {
        "zero.txt": "/dev/zero",
        "self.txt": "self.txt",
        "below/up": "..",
        "gone.txt": "nowhere",
    }.items():
        (tmp_path / "texts" / name).symlink_to(target)
    assert texts_of(tmp_path / "texts") == ["text"]


def test_text_that_is_too_large_to_be_held_is_refused_before_it_is_read(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"x" * 600)
    monkeypatch.setattr(files, "MOST_TEXT_BYTES", 1000)
    with pytest.raises(UsageError, match="GB of text") as refused:
        texts_of(tmp_path)
    assert refused.value.remedy == "rampcli data build, and data=indexed"
    assert texts_of(tmp_path / "a") == ["x" * 600]


@pytest.mark.parametrize("key", ["path", "blend", "validation_path"])
@pytest.mark.parametrize("source", ["indexed", "text"])
def test_a_file_that_is_not_there_is_said_to_be_of_the_setting_that_names_it(tmp_path, source, key):
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
    refused = refusal(config(DataSource(source), **given[key]))
    assert refused.keys == (f"data.{key}",)
    assert gone in refused.message


@pytest.mark.parametrize("missing", ["bin", "idx"])
def test_indexed_files_that_are_not_there_are_refused_by_name(tmp_path, missing):
    path = write_files(tmp_path / "wiki", numbered(10))
    (tmp_path / f"wiki.{missing}").unlink()
    for look in (open_corpora, check_files):
        with pytest.raises(UsageError) as refused:
            look(config(path=path))
        assert refused.value.message == f"cannot read {path}.{missing}: No such file or directory"


def test_a_folder_is_no_indexed_file(tmp_path):
    path = write_files(tmp_path / "wiki", numbered(10))
    (tmp_path / "wiki.bin").unlink()
    (tmp_path / "wiki.bin").mkdir()
    with pytest.raises(UsageError) as refused:
        open_corpora(config(path=path))
    assert str(tmp_path / "wiki.bin") in refused.value.message


def test_a_tokenizer_of_more_tokens_than_the_model_has_is_refused_with_how_many(tmp_path):
    path = write_files(
        tmp_path / "wiki", numbered(10), manifest={"vocab_size": 1234, "largest_token": 9}
    )
    refused = refusal(config(path=path))
    assert f"the tokenizer of {path} has 1,234 tokens" in refused.message
    assert (refused.keys, refused.remedy) == (("model.vocab_size",), "model.vocab_size=1234")
    (tmp_path / "text").write_text("text")
    made = config(DataSource.text, path=str(tmp_path / "text"))
    made.model.vocab_size = 255
    assert f"the tokenizer of {tmp_path / 'text'} has 256 tokens" in refusal(made).message


def test_a_tokenizer_with_gaps_needs_a_vocabulary_beyond_its_largest_token(tmp_path):
    words(the=1, cat=VOCAB_SIZE).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text").write_text("the cat the cat the cat")
    made = config(
        DataSource.text,
        path=str(tmp_path / "text"),
        split=[1, 0, 0],
        tokenizer=str(tmp_path / "tokenizer.json"),
    )
    assert refusal(made).remedy == f"model.vocab_size={VOCAB_SIZE + 1}"


@pytest.mark.parametrize(
    "manifest", [None, {"largest_token": 9}], ids=["no manifest", "one that lies"]
)
def test_a_token_beyond_the_vocabulary_is_refused_as_it_is_read_whatever_the_manifest_says(
    tmp_path, manifest
):
    path = write_files(tmp_path / "wiki", [[1] * 9, [VOCAB_SIZE] * 9], manifest=manifest)
    training = open_corpora(config(path=path, split=[1, 0, 0])).training
    with pytest.raises(UsageError, match=f"{path} holds token 300,"):
        training.read(np.arange(4))


def test_a_corpus_without_tokens_is_refused_as_one_without_samples(tmp_path):
    path = write_files(tmp_path / "empty", [[]], manifest={"largest_token": None})
    refused = refusal(config(path=path, split=[1, 0, 0]))
    assert f"the training corpus of {path} has 0 samples" in refused.message


@pytest.mark.parametrize(
    "other", [numbered(11), numbered(9, length=10)], ids=["more tokens", "fewer documents"]
)
def test_a_manifest_of_another_build_is_noticed(tmp_path, other):
    path = write_files(tmp_path / "wiki", numbered(10), manifest={"largest_token": 9})
    write_files(tmp_path / "wiki", other)
    assert refusal(config(path=path)).message == f"{path}.json does not belong to {path}.bin"


def test_corpora_of_a_blend_have_one_tokenizer(tmp_path):
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
def test_a_file_that_changes_while_it_is_trained_on_is_one_error(tmp_path, change):
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


def test_a_corpus_of_a_gigabyte_is_opened_as_soon_as_one_of_a_megabyte_with_as_many_documents(
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


def test_a_part_for_validation_begins_with_a_document(tmp_path):
    path = write_files(tmp_path / "wiki", numbered(30, length=7))
    opened = open_corpora(config(path=path, document_mask=True, sequence_length=10))
    [training], [validation] = opened.training.corpora, opened.validation.corpora
    assert (training.first, training.end, validation.first, validation.end) == (0, 105, 105, 210)
    assert validation.read(np.array([0])).positions.tolist() == [[0, 1, 2, 3, 4, 5, 6, 0, 1, 2]]


@pytest.mark.parametrize(
    "boundaries", [[0, 1, 2, 3], [0, 2, 3], [0, 3], [0, 0, 2, 3, 3], [0, 0, 2, 3]], ids=str
)
def test_a_document_may_be_several_sequences_or_none_as_megatron_splits_and_writes_them(
    tmp_path, boundaries
):
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
