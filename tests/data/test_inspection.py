import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from built_corpora import write_lines
from rampcli.data.building.build import build
from rampcli.data.building.options import BuildOptions
from rampcli.data.indexed import HEADER, bin_of, idx_of, manifest_of, tokenizer_of, write_index
from rampcli.data.inspection import faults_of, inspect
from rampcli.errors import UsageError

TEXTS = ["a", "bcd", "efghi\n" * 10, ""]


@pytest.fixture
def prefix(tmp_path):
    source, output = write_lines(tmp_path / "in.jsonl", TEXTS), tmp_path / "corpus"
    build(BuildOptions(inputs=(source,), output=output, tokenizer="bytes", workers=1))
    return output


def write(prefix, lengths, kind="<u2"):
    bin_of(prefix).write_bytes(np.arange(sum(lengths), dtype=kind).tobytes())
    write_index(idx_of(prefix), np.dtype(kind), lambda: iter([np.array(lengths, dtype=np.int64)]))


def test_a_corpus_built_by_rampcli_is_described(prefix):
    found = inspect(prefix)
    assert (
        found.items()
        >= {
            "documents": 3,
            "tokens": 64,
            "type": "uint16",
            "tokenizer": "bytes",
            "vocab_size": 256,
            "longest": 60,
            "median_length": 3,
            "largest_token": ord("i"),
            "empty": 1,
        }.items()
    )
    assert found["histogram"] == [
        (1, 1, 1),
        (2, 3, 1),
        (4, 7, 0),
        (8, 15, 0),
        (16, 31, 0),
        (32, 63, 1),
    ]
    assert found["sample"] == "abcd" + "efghi\n" * 10
    assert faults_of(prefix) == []


def test_a_corpus_of_megatron_is_described_without_a_tokenizer(tmp_path):
    megatron = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    builder = megatron.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=np.int32)
    builder.add_document(np.array([7, 8, 9]), [1, 2])
    builder.add_document(np.array([100_000]), [1])
    builder.finalize(str(tmp_path / "theirs.idx"))
    found = inspect(tmp_path / "theirs")
    assert (
        found.items()
        >= {
            "documents": 2,
            "sequences": 3,
            "tokens": 4,
            "type": "int32",
            "tokenizer": None,
            "vocab_size": None,
            "largest_token": 100_000,
            "longest": 3,
            "sample": "7 8 9 100000",
        }.items()
    )
    assert faults_of(tmp_path / "theirs") == []


@settings(max_examples=20)
@given(lengths=st.lists(st.integers(1, 200_000) | st.integers(1, 9), min_size=1, max_size=12))
def test_statistics_of_document_lengths_are_exact(tmp_path_factory, lengths):
    prefix = tmp_path_factory.mktemp("lengths") / "corpus"
    write(prefix, lengths)
    found = inspect(prefix)
    assert found["median_length"] == sorted(lengths)[(len(lengths) - 1) // 2]
    assert (found["longest"], found["mean_length"]) == (
        max(lengths),
        pytest.approx(np.mean(lengths)),
    )
    for first, last, count in found["histogram"]:
        assert count == sum(first <= length <= last for length in lengths)
    assert sum(count for _, _, count in found["histogram"]) == len(lengths)


def test_a_corpus_without_documents_is_described(tmp_path):
    write(tmp_path / "none", [])
    found = inspect(tmp_path / "none")
    assert (
        found.items()
        >= {
            "documents": 0,
            "histogram": [],
            "median_length": 0,
            "largest_token": None,
            "sample": "",
        }.items()
    )
    assert faults_of(tmp_path / "none") == []


def put(path, place, content):
    with path.open("r+b") as file:
        file.seek(place)
        file.write(content)


def number(value):
    return np.int64(value).tobytes()


def change_manifest(prefix, **changes):
    manifest_of(prefix).write_text(
        json.dumps(json.loads(manifest_of(prefix).read_text()) | changes)
    )


POINTERS = HEADER.size + 3 * 4
DOCUMENTS = POINTERS + 3 * 8

FAULTS = {
    "sequence 1 starts at byte 3 instead of 2": lambda prefix: put(
        idx_of(prefix), POINTERS + 8, number(3)
    ),
    "document 1 ends before it starts": lambda prefix: put(
        idx_of(prefix), DOCUMENTS + 8, number(3)
    ),
    "sequence 0 has length -1": lambda prefix: put(
        idx_of(prefix), HEADER.size, np.int32(-1).tobytes()
    ),
    "checksum of": lambda prefix: put(bin_of(prefix), 0, b"b"),
    "there is a token 300, and the vocabulary has 256": lambda prefix: put(
        bin_of(prefix), 0, np.uint16(300).tobytes()
    ),
    "corpus.bin has 127 bytes": lambda prefix: bin_of(prefix).write_bytes(
        bin_of(prefix).read_bytes()[:-1]
    ),
    "tokenizer.json is missing": lambda prefix: tokenizer_of(prefix).unlink(),
    "is not a tokenizer": lambda prefix: tokenizer_of(prefix).write_text("{"),
    "the manifest says 4": lambda prefix: change_manifest(prefix, documents=4),
    "the manifest says 9": lambda prefix: change_manifest(prefix, largest_token=9),
    "not a manifest of format 1": lambda prefix: change_manifest(prefix, format=2),
    "corpus.json is damaged": lambda prefix: manifest_of(prefix).write_text("{"),
    "not an index in Megatron's format": lambda prefix: put(idx_of(prefix), 0, b"X"),
}


@pytest.mark.parametrize("message", FAULTS)
def test_every_kind_of_damage_is_named(prefix, message):
    FAULTS[message](prefix)
    assert any(message in fault for fault in faults_of(prefix)), faults_of(prefix)


def test_a_corpus_with_a_damaged_index_has_no_statistics(prefix):
    FAULTS["document 1 ends before it starts"](prefix)
    with pytest.raises(UsageError, match="document 1 ends before it starts"):
        inspect(prefix)


@pytest.mark.parametrize(("kind", "token"), [("<i4", -5), ("<i8", 2**40), ("<i8", -(2**63))])
def test_tokens_that_the_tokenizer_cannot_decode_give_one_error(prefix, kind, token):
    write(prefix, [3], kind)
    manifest_of(prefix).unlink()
    put(bin_of(prefix), 0, np.array([token], kind).tobytes())
    with pytest.raises(UsageError, match="the tokenizer cannot decode the tokens"):
        inspect(prefix)
    assert any("token" in fault for fault in faults_of(prefix))


def test_a_missing_corpus_gives_an_error(tmp_path):
    for look in (inspect, faults_of):
        with pytest.raises(UsageError, match=r"cannot read .*none\.idx"):
            look(tmp_path / "none")
