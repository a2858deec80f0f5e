"""Text files, and what is said of files that are not text."""

import gzip
import json
import os
import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from rampcli.cli.main import app
from rampcli.data import texts
from rampcli.data.building.encoding import BadRecord, parse_slice
from rampcli.data.building.records import Slice
from rampcli.data.examples import Split, read_file_examples
from rampcli.data.sources import open_corpora
from rampcli.data.texts import convert_remedy, read_texts, wide_encoding
from rampcli.errors import UsageError
from small_corpora import config, refusal

ROWS = '{"text": "one two three"}\n' * 40


def test_files_in_hidden_folders_are_not_read(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "index").write_bytes(b"\xff\xfe")
    (tmp_path / "a.txt").write_text("text")
    assert read_texts(tmp_path) == ["text"]


def test_fifos_devices_and_circular_links_in_a_folder_of_text_are_skipped(tmp_path):
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
    assert read_texts(tmp_path / "texts") == ["text"]


def test_text_that_is_too_large_is_refused_before_it_is_read(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"x" * 600)
    monkeypatch.setattr(texts, "MOST_TEXT_BYTES", 1000)
    with pytest.raises(UsageError, match="GiB of text") as refused:
        read_texts(tmp_path)
    assert "rampcli data build" in refused.value.remedy
    assert read_texts(tmp_path / "a") == ["x" * 600]


@pytest.mark.parametrize(
    ("content", "found", "remedy"),
    [
        (b"x" * 5000 + b"\xff\0", "byte 5,000 is not UTF-8", "text in UTF-8"),
        (b"x" * 5000 + b"\0", "byte 5,000 is zero", "text in UTF-8"),
        ("Käse".encode("cp1252"), "byte 1 is not UTF-8", "iconv -f CP1252 -t UTF-8"),
        ("Käse".encode("utf-16"), "it is in UTF-16", "iconv -f UTF-16 -t UTF-8"),
    ],
)
def test_text_that_is_not_utf_8_is_refused_with_the_command_that_converts_it(
    content, found, remedy, tmp_path
):
    (tmp_path / "my file").write_bytes(content)
    refused = refusal(config("text", path=str(tmp_path)))
    assert refused.message == f"{tmp_path / 'my file'} is not text in UTF-8: {found}"
    assert (refused.keys, remedy in refused.remedy) == (("data.path",), True)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("text", "x.jsonl"),
        ("text", "x.jsonl.gz"),
        ("text", "folder"),
        ("indexed", "x.jsonl"),
        ("indexed", "x.jsonl.gz"),
    ],
)
def test_the_build_that_a_refusal_of_json_lines_names_gives_a_corpus(source, name, tmp_path):
    (tmp_path / "folder").mkdir()
    for file in ("x.jsonl", "folder/x.ndjson"):
        (tmp_path / file).write_text(ROWS)
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(ROWS.encode()))
    remedy = refusal(config(source, path=name)).remedy
    assert "data=text" not in remedy
    command = shlex.split(remedy.split("`")[1])
    assert CliRunner().invoke(app, command[1:]).exit_code == 0
    path = remedy.partition("data.path=")[2]
    assert open_corpora(config(path=path, split=[1, 0, 0])).training.corpora[0].windows


def test_a_folder_of_text_may_also_have_json_lines(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "b.jsonl").write_text(ROWS)
    assert read_texts(tmp_path) == ["text", ROWS]


def test_a_corpus_for_validation_needs_text_too(tmp_path):
    (tmp_path / "a.txt").write_text("text" * 100)
    (tmp_path / "empty.txt").touch()
    made = config("text", path=str(tmp_path / "a.txt"))
    made.data.validation_path = str(tmp_path / "empty.txt")
    refused = refusal(made)
    assert refused.keys == ("data.validation_path",)
    assert refused.message.endswith("empty.txt has no text")


TEXTS = ("hello\nworld\n", "Gr\u00fc\u00dfe, K\u00e4se\n", "\u6f22\u5b57\n" * 9, "\U0001f600 x\n")
WIDE = ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")


@pytest.mark.parametrize("encoding", WIDE)
@pytest.mark.parametrize("text", TEXTS)
def test_a_text_in_another_encoding_is_refused_and_the_advice_gives_the_text(
    encoding, text, tmp_path
):
    path = tmp_path / "old.txt"
    path.write_bytes(text.encode(encoding))
    with pytest.raises(UsageError, match="is not text in UTF-8: it is in UTF-") as refused:
        read_texts(path)
    command = refused.value.remedy.split("`")[1]
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    assert read_texts(tmp_path / "NEW.txt") == [text]
    for kind in ("text", "json"):
        (bad,) = parse_slice(Slice(0, kind, 1, path.read_bytes()), "text")
        assert isinstance(bad, BadRecord)
        assert shlex.split(command)[:5] == shlex.split(bad.remedy.split("`")[1])[:5]
    path.write_bytes(json.dumps({"prompt": "a", "response": "b"}).encode(encoding))
    with pytest.raises(UsageError, match="is in UTF-"):
        read_file_examples(path, Split.of([1, 0, 0]), needs_responses=True)


@given(text=st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1))
def test_a_text_in_utf_8_is_read_as_it_is(text):
    assert wide_encoding(text.encode()) is None
    assert list(parse_slice(Slice(0, "text", 1, text.encode()), "text")) == [text]


def test_a_mark_of_utf_8_is_not_a_part_of_the_text(tmp_path):
    (tmp_path / "a").write_bytes("x".encode("utf-8-sig"))
    assert read_texts(tmp_path / "a") == ["x"]


def test_lines_with_zero_bytes_are_not_text():
    content = b"good\nb\0d \x01\ngood\n"
    bad, text = parse_slice(Slice(0, "text", 1, content), "text")
    assert (bad.line, text) == (2, "good\ngood\n")
    assert "is zero" in bad.reason
    assert convert_remedy(content) == "text in UTF-8"
