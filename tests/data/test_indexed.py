import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rampcli.data import indexed
from rampcli.data.building.build import build
from rampcli.data.building.options import BuildOptions
from rampcli.data.indexed import (
    HEADER,
    MAGIC,
    IndexedFile,
    bin_of,
    idx_of,
    manifest_of,
    read_manifest,
    token_type,
    write_index,
)
from rampcli.data.sources import read_file_facts
from rampcli.errors import UsageError
from rampcli.settings.config import Config

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")

DOCUMENTS = [[[1, 2, 3]], [[4], [5, 6]], [[65_000]]]
"""Documents, each a list of sequences of tokens."""


def megatron():
    """Returns the module of Megatron-LM, whose import takes two seconds."""
    return pytest.importorskip("megatron.core.datasets.indexed_dataset")


def write_by_megatron(prefix: Path, documents, kind=np.uint16) -> None:
    builder = megatron().IndexedDatasetBuilder(str(bin_of(prefix)), dtype=kind)
    for sequences in documents:
        builder.add_document(
            torch.tensor([token for sequence in sequences for token in sequence]),
            [len(one) for one in sequences],
        )
    builder.finalize(str(idx_of(prefix)))


def write_by_us(prefix: Path, documents, kind="<u2", *, block=None) -> None:
    lengths = np.array([len(tokens) for tokens in documents], dtype=np.int64)
    bin_of(prefix).write_bytes(
        b"".join(np.array(tokens, dtype=kind).tobytes() for tokens in documents)
    )
    block = block or max(1, len(lengths))
    write_index(
        idx_of(prefix),
        np.dtype(kind),
        lambda: (lengths[at : at + block] for at in range(0, len(lengths), block)),
    )


@pytest.fixture
def prefix(tmp_path):
    write_by_megatron(tmp_path / "corpus", DOCUMENTS)
    return tmp_path / "corpus"


def test_a_file_written_by_megatron_is_read_back_unchanged(prefix):
    file = IndexedFile.open(prefix)
    assert file.tokens.tolist() == [1, 2, 3, 4, 5, 6, 65_000]
    assert file.lengths.tolist() == [3, 1, 2, 1]
    assert file.token_offsets(0, file.documents).tolist() == [0, 3, 6, 7]


@pytest.mark.parametrize("kind", ["<u2", "<i4", "<u1", "<i8"])
def test_megatron_reads_the_same_tokens_from_a_file_of_rampcli(tmp_path, kind):
    documents = [[1, 2, 3], [4], [5, 6, 250 if kind == "<u1" else 60_000]]
    write_by_us(tmp_path / "corpus", documents, kind)
    read = megatron().IndexedDataset(str(tmp_path / "corpus"))
    assert [read[number].tolist() for number in range(len(read))] == documents
    assert read.document_indices.tolist() == [0, 1, 2, 3]


@settings(max_examples=15)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    block=st.integers(1, 7),
    wide=st.booleans(),
)
def test_the_index_equals_megatrons_byte_for_byte_for_any_block_size(
    tmp_path_factory, lengths, block, wide
):
    folder, kind = tmp_path_factory.mktemp("index"), np.dtype("<i4" if wide else "<u2")
    documents = [list(range(length)) for length in lengths]
    write_by_megatron(folder / "theirs", [[tokens] for tokens in documents], kind.type)
    write_by_us(folder / "ours", documents, kind, block=block)
    assert idx_of(folder / "ours").read_bytes() == idx_of(folder / "theirs").read_bytes()
    assert bin_of(folder / "ours").read_bytes() == bin_of(folder / "theirs").read_bytes()


def test_a_document_longer_than_the_largest_sequence_is_stored_as_several(tmp_path, monkeypatch):
    monkeypatch.setattr(indexed, "LONGEST_SEQUENCE", 4)
    write_by_us(tmp_path / "corpus", [[1] * 9, [2] * 4, [3]])
    file = IndexedFile.open(tmp_path / "corpus")
    assert file.lengths.tolist() == [4, 4, 1, 4, 1]
    assert file.document_indices.tolist() == [0, 3, 4, 5]
    assert file.token_offsets(0, 3).tolist() == [0, 9, 13, 14]


@pytest.mark.parametrize(
    ("vocab_size", "kind"),
    [(256, "uint16"), (65_499, "uint16"), (65_500, "int32"), (128_256, "int32")],
)
def test_tokens_have_the_type_that_megatron_chooses(vocab_size, kind):
    assert token_type(vocab_size).name == kind
    assert megatron().DType.optimal_dtype(vocab_size) is token_type(vocab_size).type


def header(**changes):
    fields = {"magic": MAGIC, "version": 1, "code": 8, "sequences": 0, "boundaries": 1} | changes
    return HEADER.pack(*fields.values()) + struct.pack("<q", 0)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "too few for an index"),
        (b"garbage" * 100, "not an index in Megatron's format"),
        (header(version=2), "version 2"),
        (header(code=6), "not an integer type"),
        (header(code=99), "not an integer type"),
        (header(sequences=10**12), "bytes instead of"),
        (header()[:-1], "bytes instead of"),
        (header(boundaries=0), "bytes instead of"),
        (header(boundaries=2**64 - 1), "bytes instead of"),
        (header()[:-8] + struct.pack("<q", 7), "documents do not cover its sequences"),
    ],
)
def test_a_file_that_is_not_an_index_is_refused(prefix, content, said):
    idx_of(prefix).write_bytes(content)
    with pytest.raises(UsageError, match=said):
        IndexedFile.open(prefix)


LENGTHS = [3, 1, 2, 1]
STARTS = [0, 6, 8, 12]
BOUNDARIES = [0, 1, 3, 4]


@pytest.mark.parametrize(
    ("lengths", "starts", "boundaries", "said"),
    [
        ([3, -1, 2, 1], STARTS, BOUNDARIES, "sequence 1 has length -1"),
        (
            [3, 2, 2, 1],
            STARTS,
            BOUNDARIES,
            "sequence 2 starts at byte 8 instead of 10",
        ),
        (
            [3, 0, 2, 1],
            STARTS,
            BOUNDARIES,
            "sequence 2 starts at byte 8 instead of 6",
        ),
        (
            LENGTHS,
            [2, 6, 8, 12],
            BOUNDARIES,
            "sequence 0 starts at byte 2 instead of 0",
        ),
        (LENGTHS, [0, 4, 8, 12], BOUNDARIES, "sequence 1 starts at byte 4"),
        (LENGTHS, [0, 6, -8, 12], BOUNDARIES, "sequence 2 starts at byte -8"),
        (LENGTHS, [0, 6, 8, 2**62], BOUNDARIES, "sequence 3 starts at byte 4,611"),
        (LENGTHS, [0, 6, 8 - 2**63, 12], BOUNDARIES, "sequence 2 starts at byte -9"),
        (
            [3, 1, 2, 2],
            STARTS,
            BOUNDARIES,
            r"corpus\.bin has 14 bytes, but corpus\.idx describes 16",
        ),
        ([2**31 - 1, 1, 2, 1], STARTS, BOUNDARIES, "sequence 1 starts at byte 6"),
        (LENGTHS, STARTS, [0, 3, 1, 4], "document 1 ends before it starts"),
        (LENGTHS, STARTS, [0, 9, 3, 4], "document 1 ends before it starts"),
        (LENGTHS, STARTS, [0, -1, 3, 4], "document 0 ends before it starts"),
        (LENGTHS, STARTS, [1, 1, 3, 4], "documents do not cover its sequences"),
        (LENGTHS, STARTS, [0, 1, 3, 5], "documents do not cover its sequences"),
        (LENGTHS, STARTS, [0, 1, 3, 3], "documents do not cover its sequences"),
        (LENGTHS, STARTS, [], "documents do not cover its sequences"),
    ],
)
@pytest.mark.parametrize("block", [1, 2, 3, 100])
def test_an_inconsistent_index_is_refused_when_it_is_opened(
    prefix, monkeypatch, lengths, starts, boundaries, said, block
):
    monkeypatch.setattr(indexed, "ENTRIES_AT_ONCE", block)
    assert IndexedFile.open(prefix).documents == 3
    numbers = np.array(lengths, "<i4").tobytes() + np.array([*starts, *boundaries], "<i8").tobytes()
    idx_of(prefix).write_bytes(HEADER.pack(MAGIC, 1, 8, 4, len(boundaries)) + numbers)
    with pytest.raises(UsageError, match=said):
        IndexedFile.open(prefix)


@settings(max_examples=200)
@given(place=st.integers(0, 10**6), value=st.integers(0, 255))
def test_an_index_with_any_changed_byte_is_refused_or_stays_within_the_tokens(
    tmp_path_factory, place, value
):
    prefix = tmp_path_factory.mktemp("byte") / "corpus"
    write_by_us(prefix, [[1, 2, 3], [4], [5, 6, 7]])
    content = bytearray(idx_of(prefix).read_bytes())
    content[place % len(content)] = value
    idx_of(prefix).write_bytes(content)
    try:
        file = IndexedFile.open(prefix)
    except UsageError:
        return
    starts = file.token_offsets(0, file.documents)
    assert starts[0] == 0
    assert starts[-1] == len(file.tokens)
    assert (np.diff(starts) >= 0).all()


def test_more_tokens_than_64_bits_can_address_are_refused(prefix, monkeypatch):
    monkeypatch.setattr(indexed, "MOST_TOKENS", 6)
    with pytest.raises(UsageError, match="have more than 6 tokens"):
        IndexedFile.open(prefix)


def test_a_vocabulary_too_large_for_every_token_type_is_refused():
    assert token_type(2**31).name == "int32"
    with pytest.raises(UsageError, match="token 2,147,483,648 of the tokenizer does not fit"):
        token_type(2**31 + 1)


def test_an_index_is_not_written_through_a_link(tmp_path):
    (tmp_path / "precious").write_text("mine")
    idx_of(tmp_path / "corpus").symlink_to(tmp_path / "precious")
    with pytest.raises(UsageError, match="symbolic link"):
        write_by_us(tmp_path / "corpus", [[1]])
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize(
    "change", [lambda tokens: tokens[:-1], lambda tokens: tokens + b"\0\0", lambda _: b""]
)
def test_tokens_that_do_not_belong_to_the_index_are_refused(prefix, change):
    bin_of(prefix).write_bytes(change(bin_of(prefix).read_bytes()))
    with pytest.raises(UsageError, match=r"but corpus\.idx describes"):
        IndexedFile.open(prefix)


@pytest.mark.parametrize("path_of", [bin_of, idx_of])
def test_a_missing_file_and_one_that_cannot_be_read_are_named(prefix, path_of):
    path_of(prefix).unlink()
    with pytest.raises(UsageError, match=f"cannot read {path_of(prefix)}: No such file"):
        IndexedFile.open(prefix)
    for make in (Path.mkdir, lambda path: path.rmdir() or os.mkfifo(path)):
        make(path_of(prefix))
        with pytest.raises(UsageError, match=f"cannot read {path_of(prefix)}: not a regular file"):
            IndexedFile.open(prefix)


@pytest.mark.parametrize("path_of", [bin_of, idx_of])
def test_a_file_that_changes_while_it_is_open_is_refused(prefix, path_of):
    file = IndexedFile.open(prefix)
    file.check_unchanged()
    content = path_of(prefix).read_bytes()
    path_of(prefix).unlink()
    with pytest.raises(UsageError, match="cannot read"):
        file.check_unchanged()
    path_of(prefix).with_suffix(".new").write_bytes(content)
    path_of(prefix).with_suffix(".new").rename(path_of(prefix))
    with pytest.raises(UsageError, match="has changed since it was opened"):
        file.check_unchanged()


def test_a_corpus_without_documents_is_valid(tmp_path):
    write_by_us(tmp_path / "corpus", [])
    file = IndexedFile.open(tmp_path / "corpus")
    assert (file.documents, len(file.tokens), file.token_offsets(0, 0).tolist()) == (0, 0, [0])


@pytest.fixture
def built(tmp_path):
    (tmp_path / "in.txt").write_text("text " * 100)
    build(
        BuildOptions(
            inputs=(tmp_path / "in.txt",), output=tmp_path / "wiki", tokenizer="bytes", workers=1
        )
    )
    return tmp_path / "wiki"


def refusal(built):
    with pytest.raises(UsageError) as refused:
        read_manifest(built)
    assert str(manifest_of(built)) in refused.value.message
    return refused.value.message


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"format": 1}', '{"format": 2}', "\xff", "[" * 100_000],
    ids=lambda content: content[:9],
)
def test_an_unreadable_manifest_gives_a_usage_error(built, content):
    manifest_of(built).write_bytes(content.encode("latin-1"))
    refusal(built)
    made = Config()
    made.data.source, made.data.path = "indexed", str(built)
    with pytest.raises(UsageError) as refused:
        read_file_facts(made)
    assert refused.value.keys == ("data.path",)


@pytest.mark.parametrize("value", ["a", -1, 1.5, [], {}, True, 10**30], ids=str)
@pytest.mark.parametrize("name", ["vocab_size", "largest_token", "tokens", "documents", "files"])
def test_a_field_of_a_manifest_with_a_wrong_type_is_named(built, name, value):
    manifest_of(built).write_text(
        json.dumps(json.loads(manifest_of(built).read_text()) | {name: value})
    )
    assert f"is damaged: {name} " in refusal(built)


@pytest.mark.parametrize(
    "name",
    [
        "vocab_size",
        "largest_token",
        "tokens",
        "documents",
        "files",
        "tokenizer",
        "eod_token",
        "empty",
    ],
)
def test_a_manifest_without_a_field_is_damaged(built, name):
    manifest = json.loads(manifest_of(built).read_text())
    del manifest[name]
    manifest_of(built).write_text(json.dumps(manifest))
    assert refusal(built).endswith(f"is damaged: it has no {name}")


def test_a_manifest_that_is_a_fifo_gives_an_error_without_waiting(built):
    manifest_of(built).unlink()
    os.mkfifo(manifest_of(built))
    assert refusal(built) == f"cannot read {built}.json: not a regular file"


def test_files_without_a_manifest_come_from_another_program(built):
    manifest_of(built).unlink()
    assert read_manifest(built) is None
