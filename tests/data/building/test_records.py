import gzip
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from rampcli.data.building import records, streams
from rampcli.data.building.encoding import BadRecord, parse_slice
from rampcli.data.building.records import Cursor, Reader, find_inputs
from rampcli.data.building.streams import find_cut
from rampcli.errors import UsageError


def reader_of(*paths: Path, chunk_bytes: int = 64) -> Reader:
    return Reader(find_inputs(paths)[0], "text", chunk_bytes)


def records_in(chunks) -> list[str | BadRecord]:
    return [found for chunk in chunks for one in chunk.slices for found in parse_slice(one, "text")]


def documents_of(reader: Reader, start: Cursor | None = None) -> list[str]:
    """Returns the texts, joining those that came in pieces."""
    documents, begun = [], ""
    for chunk in reader.chunks(start):
        texts = records_in([chunk])
        if chunk.is_piece:
            begun += "".join(texts)
            if chunk.slices[0].ends_text:
                documents, begun = [*documents, begun], ""
        else:
            documents += texts
    return documents


def write(path: Path, texts: list[str]) -> Path:
    """Writes texts to a file; its name gives the kind and compression."""
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": texts}), path, row_group_size=3)
        return path
    content = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    half = len(content) // 2
    pack = {".gz": gzip.compress, ".zst": zstandard.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(content[:half]) + pack(content[half:]))
    return path


SUFFIXES = [".jsonl", ".json", ".ndjson", ".jsonl.gz", ".jsonl.zst", ".parquet"]
TEXTS = [f"text {number} " + "ü漢\n" * (number % 7) for number in range(40)] + [""]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_kind_of_file_gives_the_same_documents(tmp_path, suffix):
    assert documents_of(reader_of(write(tmp_path / f"corpus{suffix}", TEXTS))) == TEXTS


@pytest.mark.parametrize("suffix", [*SUFFIXES, ".txt", ".txt.gz", ".txt.zst"])
def test_reading_can_resume_after_any_chunk(tmp_path, suffix):
    if ".txt" in suffix:
        pack = {".gz": gzip.compress, ".zst": zstandard.compress}.get(suffix[4:], bytes)
        (tmp_path / f"one{suffix}").write_bytes(pack("".join(TEXTS).encode()))
    else:
        write(tmp_path / f"one{suffix}", TEXTS)
    (tmp_path / "two.txt").write_text("the last one")
    reader = reader_of(tmp_path / f"one{suffix}", tmp_path / "two.txt")
    chunks = list(reader.chunks())
    assert len(chunks) > 5
    for number, chunk in enumerate(chunks):
        assert list(reader.chunks(chunk.end))[0:2] == chunks[number + 1 : number + 3]
    assert chunks[-1].consumed_bytes == reader.bytes


@settings(max_examples=40)
@given(text=st.text(st.sampled_from("ab \n\t\r漢🙂"), max_size=400))
def test_the_pieces_of_a_text_join_to_the_text_and_split_no_character(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("pieces") / "text.txt"
    path.write_bytes(text.encode())
    chunks = list(reader_of(path, chunk_bytes=32).chunks())
    assert b"".join(one.content for chunk in chunks for one in chunk.slices).decode() == text
    for chunk in chunks:
        assert chunk.slices[0].content.decode().encode() == chunk.slices[0].content
        assert len(chunk.slices[0].content) <= 32


@pytest.mark.parametrize(
    ("data", "left"),
    [
        (
            b"one two\nthree\n\nfour\n five",
            b"one two\nthree\n\n",
        ),  # neither in the first half nor before a blank
        (b"no line here, words only", b"no line here, words"),
        ("漢".encode() * 8 + b"\xe6", "漢".encode() * 8),
        (b"x" * 20, b"x" * 19),
    ],
)
def test_a_text_is_cut_after_a_line_or_else_at_a_space_or_else_between_characters(data, left):
    assert data[: find_cut(data)] == left


def test_a_byte_order_mark_is_dropped_only_at_the_start_of_a_file(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffone \ufeff\r\ntwo".encode())
    (tmp_path / "b.jsonl").write_bytes('\ufeff{"text": "\ufeffthree"}\n'.encode())
    assert documents_of(reader_of(tmp_path)) == ["one \ufeff\r\ntwo", "\ufeffthree"]


def test_a_folder_gives_its_files_of_known_kinds_in_the_order_of_their_paths(tmp_path):
    for name in (
        "b.txt",
        "a/z.md",
        "a/b/c.jsonl.gz",
        "a.txt.zst",
        "picture.png",
        "table.parquet.gz",
        "noextension",
        "own.json",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found, left_out = find_inputs([tmp_path], leave_out=[tmp_path / "own.json"])
    assert [one.path.relative_to(tmp_path).as_posix() for one in found] == [
        "a/b/c.jsonl.gz",
        "a/z.md",
        "a.txt.zst",
        "b.txt",
    ]
    assert [(one.kind, one.compression) for one in found][:2] == [
        ("json", ".gz"),
        ("text", None),
    ]
    assert sorted(left_out.items()) == [(".gz", 1), (".png", 1), ("noextension", 1)]
    ((named,), _) = find_inputs([tmp_path / "noextension"])
    assert named.kind == "text"


def test_inputs_that_are_missing_duplicate_or_not_files_are_refused(tmp_path):
    (tmp_path / "a.txt").touch()
    (tmp_path / "link.txt").symlink_to(tmp_path / "a.txt")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/page.rst").touch()
    for paths, message in (
        ([tmp_path / "none.txt"], "cannot read .*No such file"),
        ([tmp_path, tmp_path / "a.txt"], "given twice"),
        ([tmp_path / "a.txt", tmp_path / "link.txt"], "given twice"),
        ([tmp_path / "empty"], "contains no files to read\n"),
        ([tmp_path / "other"], r"contains no files to read \(it has 1 .rst\)"),
        ([Path("/dev/null")], "not a regular file"),
    ):
        with pytest.raises(UsageError, match=message):
            find_inputs(paths)


BAD_LINES = {
    "{": "not JSON",
    "[" * 100_000: "not JSON",
    '["text"]': "not a JSON object but a list",
    '{"content": "x"}': "no key text; the keys are: content",
    "{}": "no key text; the keys are: none",
    '{"text": null}': "text is not a string but a NoneType",
    '{"text": 3}': "text is not a string but a int",
    '{"text": "\\ud800"}': "lone surrogate",
    '{"text": ' + "9" * 5000 + "}": "not JSON",
}


def test_a_bad_line_is_reported_by_its_number_and_the_others_are_read(tmp_path):
    lines = [line for bad in BAD_LINES for line in (bad, "", '{"text": "good"}')]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    found = records_in(reader_of(tmp_path).chunks())
    bad = [one for one in found if isinstance(one, BadRecord)]
    assert [one.line for one in bad] == [1 + 3 * number for number in range(len(BAD_LINES))]
    for one, message in zip(bad, BAD_LINES.values(), strict=True):
        assert message in one.reason
    assert [one for one in found if isinstance(one, str)] == ["good"] * len(BAD_LINES)


@pytest.mark.parametrize(
    ("content", "command"),
    [('[{"text": "a"}]', "jq -c '.[]'"), ('{\n"text": "a"\n}', "jq -c ."), ('{"text": "a', "")],
)
def test_records_over_several_lines_are_refused_with_the_command_that_splits_them(
    tmp_path, content, command
):
    (tmp_path / "a.json").write_text(content)
    bad = next(one for one in records_in(reader_of(tmp_path).chunks()))
    assert isinstance(bad, BadRecord)
    assert command in bad.remedy
    assert ("jq" in bad.remedy) == bool(command)


def test_invalid_utf_8_is_reported_by_its_line_in_text_json_and_parquet(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\r\n\xffbad\nthree\n")
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "a"}\n{"text": "\xff"}\n')
    strings = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")]
    )
    pq.write_table(pa.table({"text": strings}), tmp_path / "c.parquet")
    found = records_in(reader_of(tmp_path).chunks())
    assert [one for one in found if isinstance(one, str)] == ["one\r\nthree\n", "a", "a"]
    assert [(one.input, one.line) for one in found if isinstance(one, BadRecord)] == [
        (0, 2),
        (1, 2),
        (2, 2),
    ]
    assert all("not UTF-8: byte 0xff" in one.reason for one in found if isinstance(one, BadRecord))


def test_line_numbers_count_across_the_pieces_of_a_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"a line\n" * 50 + b"\xff\n" + b"a line\n" * 50)
    (bad,) = [
        one
        for one in records_in(reader_of(tmp_path / "a.txt").chunks())
        if isinstance(one, BadRecord)
    ]
    assert bad.line == 51


def test_a_line_that_is_too_long_is_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "LONGEST_TEXT_BYTES", 1000)
    good = json.dumps({"text": "good"})
    (tmp_path / "a.jsonl").write_text("\n".join([good, json.dumps({"text": "x" * 5000}), good, ""]))
    found = records_in(reader_of(tmp_path).chunks())
    assert [one.line if isinstance(one, BadRecord) else one for one in found] == [
        "good",
        2,
        "good",
    ]


def test_a_text_of_a_row_that_is_too_long_is_refused_with_its_row(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "LONGEST_TEXT_BYTES", 1000)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", "é" * 500, "é" * 501, "b"]}), path)
    first, second, third, fourth = records_in(reader_of(path).chunks())
    assert (first, second, fourth) == ("a", "é" * 500, "b")
    assert (third.line, third.reason) == (3, "text longer than 0 MiB")


def test_a_parquet_column_may_be_text_of_any_type_but_must_be_text(tmp_path):
    kinds = (
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.int32(), pa.large_string()),
    )
    for number, kind in enumerate(kinds):
        pq.write_table(
            pa.table({"text": pa.array(["a", None, "b"]).cast(kind)}),
            tmp_path / f"{number}.parquet",
        )
    found = records_in(reader_of(tmp_path).chunks())
    assert [one.line if isinstance(one, BadRecord) else one for one in found] == [
        "a",
        2,
        "b",
    ] * len(kinds)
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "n.parquet")
    with pytest.raises(UsageError, match="holds int64, not text"):
        list(reader_of(tmp_path / "n.parquet").chunks())
    with pytest.raises(UsageError, match="no column body"):
        list(Reader(find_inputs([tmp_path / "n.parquet"])[0], "body").chunks())


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.zst", ".parquet"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) * 2 // 3],
        lambda _: b"not what it says it is, but long enough for that",
    ],
)
def test_a_damaged_file_is_named(tmp_path, suffix, damage):
    path = write(tmp_path / f"a{suffix}", TEXTS)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UsageError, match=f"cannot read {path}"):
        list(reader_of(path).chunks())


def test_an_input_that_is_not_a_file_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "fifo.txt")
    for path in (tmp_path / "fifo.txt", tmp_path, Path("/dev/zero")):
        with pytest.raises(UsageError, match="not a regular file"):
            find_inputs([path])


def test_circular_links_are_reported_or_not_followed(tmp_path):
    (tmp_path / "in" / "below").mkdir(parents=True)
    write(tmp_path / "in" / "a.jsonl", TEXTS[:2])
    (tmp_path / "in" / "below" / "up").symlink_to("..")
    assert documents_of(reader_of(tmp_path / "in")) == TEXTS[:2]
    (tmp_path / "in" / "b.txt").symlink_to("b.txt")
    for path in (tmp_path / "in", tmp_path / "in" / "b.txt"):
        with pytest.raises(
            UsageError, match=r"cannot read .*b\.txt: Too many levels of symbolic links"
        ):
            find_inputs([path])


def test_a_file_name_that_is_too_long_gives_one_error():
    with pytest.raises(UsageError, match="File name too long"):
        find_inputs([Path("x" * 300)])


def test_duplicate_column_names_and_names_that_are_not_text_are_refused(tmp_path):
    pq.write_table(
        pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]),
        tmp_path / "two.parquet",
    )
    with pytest.raises(UsageError, match="has several columns named text"):
        list(reader_of(tmp_path / "two.parquet").chunks())
    pq.write_table(pa.table({"text": ["a"], "other": ["b"]}), tmp_path / "bytes.parquet")
    content = (tmp_path / "bytes.parquet").read_bytes()
    (tmp_path / "bytes.parquet").write_bytes(content.replace(b"other", b"\xffther"))
    with pytest.raises(UsageError, match=r"cannot read .*bytes\.parquet"):
        list(reader_of(tmp_path / "bytes.parquet").chunks())


def test_the_files_of_a_folder_that_are_not_read_are_counted_by_their_endings(tmp_path):
    (tmp_path / "below").mkdir()
    for name in ("a.txt", "b.rst", "below/c.rst", "d.pdf", "below/Makefile", ".hidden", "own.bin"):
        (tmp_path / name).touch()
    _, found = find_inputs([tmp_path], leave_out=[tmp_path / "own.bin"])
    assert dict(found) == {".rst": 2, ".pdf": 1, "Makefile": 1}
    assert found.most_common(1) == [(".rst", 2)]
