import json
import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.data.building.parsing import BadRecord, parse_slice
from rampcli.data.building.records import Slice
from rampcli.data.encodings import convert_remedy, wide_encoding
from rampcli.data.examples import Split, read_file_examples
from rampcli.data.texts import read_texts
from rampcli.errors import UsageError

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
