import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.errors import DamagedFileError
from rampcli.runs.directory import RunDirectory
from rampcli.runs.rows import (
    LAST_EVENT_BYTES,
    MAX_ROW_BYTES,
    MOST_SEARCHED_BYTES,
    Tail,
    end_of_step,
    last_events,
    last_rows,
    read_rows,
)
from run_files import metrics_row

ROWS = st.lists(
    st.dictionaries(
        st.text(max_size=4), st.integers() | st.text(max_size=8) | st.none(), max_size=3
    ),
    max_size=6,
)


@pytest.fixture
def run(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    directory.path.mkdir()
    return directory


@given(rows=ROWS)
def test_rows_are_read_in_order_as_they_were_appended(rows, tmp_path_factory):
    run = RunDirectory(tmp_path_factory.mktemp("rows"))
    written = [{"event": "note", "time": 1.0, "facts": row} for row in rows]
    for row in written:
        run.append_row(run.events, row)
    assert list(read_rows(run.events)) == written


def test_a_missing_file_has_no_rows(tmp_path):
    assert list(read_rows(tmp_path / "rows.jsonl")) == []


@pytest.mark.parametrize("kept", range(16))
def test_an_incomplete_last_row_is_ignored(run, kept):
    run.append_row(run.metrics, metrics_row(step=1))
    whole = run.metrics.read_bytes()
    run.append_row(run.metrics, metrics_row(step=25))
    run.metrics.write_bytes(run.metrics.read_bytes()[: len(whole) + kept])
    assert list(read_rows(run.metrics)) == [metrics_row(step=1)]


def test_a_row_appended_after_an_incomplete_one_is_read(run):
    run.append_row(run.metrics, metrics_row(step=1))
    run.metrics.write_bytes(run.metrics.read_bytes() + b'{"st')
    run.append_row(run.metrics, metrics_row(step=2))
    assert list(read_rows(run.metrics)) == [metrics_row(step=1), metrics_row(step=2)]


def event(name):
    return {"event": name, "time": 1.0}


def test_a_tail_yields_each_new_row_once_and_waits_for_the_end_of_a_line(run):
    run.append_row(run.events, event("old"))
    tail = Tail(run.events)
    tail.skip()
    assert list(tail.rows()) == []
    with run.events.open("a") as file:
        file.write('{"event": "a", "time": 1.0}\n{"event": "b"')
    assert list(tail.rows()) == [event("a")]
    with run.events.open("a") as file:
        file.write(', "time": 1.0}\n')
    assert list(tail.rows()) == [event("b")]
    assert list(tail.rows()) == []


def test_a_tail_reads_a_row_that_replaces_an_incomplete_one(run):
    run.append_row(run.events, event("old"))
    run.events.write_bytes(run.events.read_bytes() + b'{"cut o')
    tail = Tail(run.events)
    tail.skip()
    run.append_row(run.events, event("longer than what was cut off"))
    assert list(tail.rows()) == [event("longer than what was cut off")]


def test_a_tail_waits_for_a_file_that_does_not_exist_yet(run):
    tail = Tail(run.events)
    tail.skip()
    assert list(tail.rows()) == []
    run.append_row(run.events, event("first"))
    assert list(tail.rows()) == [event("first")]


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b'{"step": 2}',
        b'{"step": 2, "loss": NaN}',
        b"[" * 200_000,
        b"\xff\xfe",
        b"x" * 2**21,
        json.dumps(metrics_row(step=-1)).encode(),
        json.dumps(metrics_row(step="2")).encode(),
        json.dumps(metrics_row(step=True)).encode(),
        json.dumps(metrics_row(world_size=0)).encode(),
        json.dumps(metrics_row(step_time_s=0)).encode(),
        json.dumps(metrics_row(consumed_samples=10**30)).encode(),
        b'{"step": ' + b"1" * 5000 + b"}",
    ],
    ids=range(13),
)
def test_a_damaged_row_is_one_error(run, line):
    run.append_row(run.metrics, metrics_row())
    run.metrics.write_bytes(run.metrics.read_bytes() + line + b"\n")
    with pytest.raises(DamagedFileError, match=r"metrics\.jsonl.* is damaged"):
        list(read_rows(run.metrics))


STEPS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3000)), max_size=30).map(
    lambda pairs: [
        {"step": sum(each for each, _ in pairs[: number + 1]), "response": "x" * size}
        for number, (_, size) in enumerate(pairs)
    ]
)
"""Rows in the order of their steps, of very different lengths; some steps are missing."""


@given(rows=STEPS, step=st.integers(0, 99), torn=st.booleans())
def test_a_binary_search_finds_the_end_of_any_step(rows, step, torn, tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "responses.jsonl"
    assert end_of_step(path, step) == 0
    lines = [json.dumps(row).encode() + b"\n" for row in rows]
    path.write_bytes(b"".join(lines) + (b'{"step": 1, "resp' if torn else b""))
    kept = [line for line, row in zip(lines, rows, strict=True) if row["step"] <= step]
    assert end_of_step(path, step) == sum(map(len, kept))


@given(rows=STEPS, count=st.integers(1, 40), torn=st.booleans())
def test_the_last_rows_are_those_at_the_end(rows, count, torn, tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "responses.jsonl"
    assert last_rows(path, count) == []
    lines = [json.dumps(row) + "\n" for row in rows]
    path.write_text("".join(lines) + ('{"step": 1, "resp' if torn else ""))
    assert last_rows(path, count) == rows[-count:]


def test_the_last_rows_with_a_column_are_found_and_others_not_even_parsed(tmp_path):
    path = tmp_path / "responses.jsonl"
    path.write_text('{"step": 1, "x": 1}\n{"step": 2, "x": 2}\n{no JSON\n' + '{"step": 4}\n' * 3)
    assert last_rows(path, 1, holding='"x"') == [{"step": 2, "x": 2}]
    assert last_rows(path, 9, holding='"x"', among=5) == [{"step": 2, "x": 2}]
    assert last_rows(path, 9, holding='"x"', among=4) == []


def test_a_damaged_row_among_the_last_is_named_by_its_byte(tmp_path):
    path = tmp_path / "responses.jsonl"
    before = '{"step": 1}\n' * 10
    path.write_text(before + "{}\n")
    for count in (1, 3):
        with pytest.raises(DamagedFileError, match=f"byte {len(before)},"):
            last_rows(path, count)


def test_a_few_rows_of_a_large_file_are_found_without_reading_it(tmp_path):
    path = tmp_path / "responses.jsonl"
    with path.open("wb") as file:
        file.write(b'{"step": 1}\n')
        file.truncate(2**40)  # a hole, which takes no disk space and would take minutes to read
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + b"".join(b'{"step": %d}\n' % step for step in range(5, 50_000)))
    assert [row["step"] for row in last_rows(path, 2)] == [49_998, 49_999]


def test_the_last_events_of_some_kinds_are_found_and_others_not_even_parsed(tmp_path):
    path = tmp_path / "events.jsonl"
    assert last_events(path, ["fault"]) == []
    fault = {"event": "fault", "time": 1.0, "reason": "x"}
    other = json.dumps({"event": "stage", "time": 1.0}) + "\n"
    damaged = '{"event": "boundary", "lost_s": no JSON\n'
    path.write_text(json.dumps(fault) + "\n" + other + damaged + json.dumps(fault) + "\n{torn")
    assert last_events(path, ["fault", "spare_ranks"]) == [fault, fault]
    with pytest.raises(DamagedFileError, match="byte 79,"):
        last_events(path, ["boundary"])


def test_behind_many_events_the_newest_of_each_kind_since_the_launch_are_found(tmp_path):
    path = tmp_path / "events.jsonl"
    fault, later = ({"event": "fault", "time": 1.0, "reason": each} for each in "xy")
    launch, start = ({"event": kind, "time": 1.0, "step": 0} for kind in ("launch", "start"))
    loss = {"event": "validation", "time": 1.0, "step": 1, "consumed_samples": 1, "loss": 3.0}
    wiki, code = ({**loss, "corpus": corpus} for corpus in ("wiki", 'co"de'))
    other = json.dumps({"event": "checkpoint", "time": 1.0, "path": "x" * 400}) + "\n"
    many = other * (LAST_EVENT_BYTES // len(other) + 1)
    kinds = ["launch", "start", "fault", "validation"]

    def written(*parts):
        path.write_text("".join(each if isinstance(each, str) else lines(each) for each in parts))
        return last_events(path, kinds)

    def lines(row):
        return json.dumps(row) + "\n"

    begin = (launch, start, wiki, code, wiki)
    assert written(fault, *begin, many, later) == [launch, start, code, wiki, later]
    shown = [launch, start, code, wiki, fault, later]
    assert written(fault, *begin, many, fault, many, fault, later) == shown
    assert written(fault, many, *begin, later) == [*begin, later]
    assert written(fault, *begin, later) == [fault, *begin, later]
    far = many * (MOST_SEARCHED_BYTES // LAST_EVENT_BYTES)
    assert written(*begin, far, later) == [later]
    with pytest.raises(DamagedFileError, match="longer than"):
        written(launch, "x" * 2 * MAX_ROW_BYTES)


@pytest.mark.parametrize("time", ["1e18", "-1e18", "-1", "1e400", "9" * 300])
def test_a_time_that_no_calendar_has_is_a_damaged_row(tmp_path, time):
    path = tmp_path / "events.jsonl"
    path.write_text(f'{{"event": "launch", "time": {time}}}\n')
    with pytest.raises(DamagedFileError, match="byte 0, is damaged"):
        list(read_rows(path))
