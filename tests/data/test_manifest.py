import json
import os

import pytest

from rampcli.data.building.build import build
from rampcli.data.building.options import BuildOptions
from rampcli.data.indexed import manifest_of
from rampcli.data.manifest import read_manifest
from rampcli.data.sources import read_file_facts
from rampcli.errors import UsageError
from rampcli.settings.config import Config


@pytest.fixture
def prefix(tmp_path):
    (tmp_path / "in.txt").write_text("text " * 100)
    build(
        BuildOptions(
            inputs=(tmp_path / "in.txt",), output=tmp_path / "wiki", tokenizer="bytes", workers=1
        )
    )
    return tmp_path / "wiki"


def refusal(prefix):
    with pytest.raises(UsageError) as refused:
        read_manifest(prefix)
    assert str(manifest_of(prefix)) in refused.value.message
    return refused.value.message


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"format": 1}', '{"format": 2}', "\xff", "[" * 100_000],
    ids=lambda content: content[:9],
)
def test_an_unreadable_manifest_gives_a_usage_error(prefix, content):
    manifest_of(prefix).write_bytes(content.encode("latin-1"))
    refusal(prefix)
    made = Config()
    made.data.source, made.data.path = "indexed", str(prefix)
    with pytest.raises(UsageError) as refused:
        read_file_facts(made)
    assert refused.value.keys == ("data.path",)


@pytest.mark.parametrize("value", ["a", -1, 1.5, [], {}, True, 10**30], ids=str)
@pytest.mark.parametrize("name", ["vocab_size", "largest_token", "tokens", "documents", "files"])
def test_a_field_of_a_manifest_with_a_wrong_type_is_named(prefix, name, value):
    manifest_of(prefix).write_text(
        json.dumps(json.loads(manifest_of(prefix).read_text()) | {name: value})
    )
    assert f"is damaged: {name} " in refusal(prefix)


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
def test_a_manifest_without_a_field_is_damaged(prefix, name):
    manifest = json.loads(manifest_of(prefix).read_text())
    del manifest[name]
    manifest_of(prefix).write_text(json.dumps(manifest))
    assert refusal(prefix).endswith(f"is damaged: it has no {name}")


def test_a_manifest_that_is_a_fifo_gives_an_error_without_waiting(prefix):
    manifest_of(prefix).unlink()
    os.mkfifo(manifest_of(prefix))
    assert refusal(prefix) == f"cannot read {prefix}.json: not a regular file"


def test_files_without_a_manifest_come_from_another_program(prefix):
    manifest_of(prefix).unlink()
    assert read_manifest(prefix) is None
