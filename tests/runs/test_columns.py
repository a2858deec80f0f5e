import json
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.errors import DamagedFileError
from rampcli.runs import columns as columns_module
from rampcli.runs.columns import Columns
from rampcli.runs.directory import RunDirectory
from rampcli.runs.rows import read_rows
from run_files import metrics_row

NUMBERS = st.none() | st.integers(0, 10**6) | st.floats(-1e6, 1e6)
ROWS = st.fixed_dictionaries(
    {"loss": st.none() | st.floats(0, 20)},
    optional={"reward": NUMBERS, "extra": NUMBERS, "text": st.none() | st.text(max_size=3)},
)
CHANGES = st.lists(st.tuples(st.integers(0, 6), st.lists(ROWS, max_size=5)), max_size=5)
"""Each change goes back some steps, as a resume does, and then takes other steps."""


def absent(values):
    return [None if value is None or value != value else value for value in values.tolist()]


def assert_same(columns, path):
    rows = list(read_rows(path))
    assert columns.rows == len(rows)
    for name in {name for row in rows for name in row}:
        assert absent(columns[name]) == [row.get(name) for row in rows]


@given(changes=CHANGES, block=st.sampled_from([300, 2**20]))
def test_columns_hold_what_the_rows_hold_however_often_a_run_resumes(
    changes, block, tmp_path_factory
):
    run = RunDirectory(tmp_path_factory.mktemp("run"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns_module, "BLOCK_BYTES", block)
        columns, step, clock = Columns(run.metrics), 0, count()
        for back, rows in changes:
            step = max(0, step - back)
            run.drop_rows_after(step)
            for row in rows:
                step += 1
                run.append_row(run.metrics, metrics_row(step=step, time=next(clock), **row))
            columns.read()
            assert_same(columns, run.metrics)


def test_a_reader_of_part_of_a_file_goes_on_where_it_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(columns_module, "BLOCK_BYTES", 1000)
    run = RunDirectory(tmp_path)
    run.metrics.write_text(
        "".join(json.dumps(metrics_row(step=step)) + "\n" for step in range(1, 41))
    )
    columns = Columns(run.metrics, names=("step", "loss"))
    counts = []
    while new := columns.read(most_bytes=1):
        counts.append(new)
    assert (sum(counts), len(counts) > 5, set(columns)) == (40, True, {"step", "loss"})
    assert columns["step"].tolist() == list(range(1, 41))


def test_a_row_longer_than_a_block_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(columns_module, "BLOCK_BYTES", 100)
    run = RunDirectory(tmp_path)
    for step in (1, 2, 3):
        run.append_row(run.metrics, metrics_row(step=step, extra="x" * 200 * step))
    columns = Columns(run.metrics)
    assert columns.read() == 3
    assert columns["step"].tolist() == [1, 2, 3]


def test_rows_before_a_damaged_one_are_kept(tmp_path):
    run = RunDirectory(tmp_path)
    whole = "".join(json.dumps(metrics_row(step=step)) + "\n" for step in (1, 2, 3))
    run.metrics.write_text(f"{whole}[]\n{whole}")
    columns = Columns(run.metrics)
    for _ in range(2):
        with pytest.raises(DamagedFileError, match=f"byte {len(whole):,},"):
            columns.read()
        assert (columns["step"].tolist(), columns.bytes_read) == ([1, 2, 3], len(whole))


def test_few_marks_are_kept_of_a_file_that_grows_row_by_row(tmp_path):
    run = RunDirectory(tmp_path)
    columns = Columns(run.metrics)
    for step in range(1, 101):
        run.append_row(run.metrics, metrics_row(step=step))
        assert columns.read() == 1
    assert len(columns.marks) <= 2


def test_whole_numbers_are_int64_and_others_have_the_type_that_is_asked_for(tmp_path):
    run = RunDirectory(tmp_path)
    for step in (1, 2):
        run.append_row(run.metrics, metrics_row(step=step, mfu=None, time=1.7e9 + step))
    columns = Columns(run.metrics, dtype=np.float32)
    columns.read()
    types = {name: columns[name].dtype for name in ("step", "loss", "mfu", "time")}
    assert types == {"step": np.int64, "loss": np.float32, "mfu": np.float32, "time": np.float64}


def test_a_number_that_no_column_can_hold_is_damage(tmp_path):
    run = RunDirectory(tmp_path)
    run.metrics.write_text(json.dumps(metrics_row(extra=10**400)) + "\n")
    with pytest.raises(DamagedFileError, match="extra is too large"):
        Columns(run.metrics).read()


def test_rows_that_vanish_are_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(columns_module, "MARK_BYTES", 1)
    run = RunDirectory(tmp_path)
    columns = Columns(run.metrics)
    assert columns.read() == 0
    for step in range(1, 4):
        run.append_row(run.metrics, metrics_row(step=step))
        assert (columns.read(), columns.resets) == (1, 0)
    run.drop_rows_after(1)
    run.append_row(run.metrics, metrics_row(step=2, loss=9.0))
    assert (columns.read(), columns.resets, columns.rows) == (2, 1, 2)
    run.metrics.unlink()
    assert (columns.read(), columns.rows) == (0, 0)


def test_an_incomplete_last_row_is_read_once_it_is_complete(tmp_path):
    path = tmp_path / "metrics.jsonl"
    line = json.dumps(metrics_row())
    path.write_text(line[:50])
    columns = Columns(path)
    assert columns.read() == 0
    path.write_text(line + "\n")
    assert columns.read() == 1


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "{}",
        '{"step": 2, "loss": NaN}',
        json.dumps(metrics_row(step="2")),
        json.dumps(metrics_row(step=True)),
        json.dumps(metrics_row(world_size=0)),
        json.dumps(metrics_row(step_time_s=0)),
        json.dumps(metrics_row(loss=1e19)),
        json.dumps(metrics_row(loss=[])),
        json.dumps(metrics_row(reward="x")),
        json.dumps(metrics_row(loss=float("inf"))),
        f"{json.dumps(metrics_row())},{json.dumps(metrics_row())}",
        "x" * 2**22,
    ],
    ids=range(13),
)
def test_a_damaged_row_is_an_error_that_names_its_byte(tmp_path: Path, line):
    path = tmp_path / "metrics.jsonl"
    whole = json.dumps(metrics_row()) + "\n"
    path.write_text(whole + line + "\n")
    columns = Columns(path)
    with pytest.raises(DamagedFileError) as caught:
        columns.read()
    assert f"byte {len(whole)}," in caught.value.message or len(line) > 2**20
    assert columns["step"].tolist() == [metrics_row()["step"]]


@pytest.mark.parametrize("block", [2000, columns_module.BLOCK_BYTES])
def test_a_file_whose_every_row_has_a_column_of_its_own_is_refused(tmp_path, monkeypatch, block):
    monkeypatch.setattr(columns_module, "BLOCK_BYTES", block)
    path = tmp_path / "metrics.jsonl"
    rows = (metrics_row(step=step, **{f"own_{step}": 1}) for step in range(1, 20_001))
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    with pytest.raises(DamagedFileError, match=r"metrics\.jsonl is damaged: more than 500 columns"):
        Columns(path).read()
