from pathlib import Path

import pandas
import polars
import pytest

from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.errors import UsageError
from rampcli.launch.run import write_run_files
from rampcli.planning.resolve import resolve
from rampcli.runs.directory import RunDirectory
from rampcli.runs.record import read_run
from run_files import metrics_row, state


@pytest.fixture
def run():
    directory = RunDirectory(Path("runs/small"))
    config = apply_overrides(llm.from_factory("llama3_tiny"), ["name=small"])
    write_run_files(directory, resolve(config), [])
    directory.write_state(state(step=2))
    for step in (1, 2):
        row = metrics_row(step=step, loss=None if step == 1 else 2.0, order_hash="ab", mfu=None)
        directory.append_row(directory.metrics, row | {"time": 100.0 + step})
    directory.append_event("launch", stage=0)
    return directory


def test_a_run_is_read_as_data_by_name_or_path(run):
    record = read_run("small")
    assert read_run(run.path).settings == record.settings
    assert (record.name, record.unit, record.state["step"]) == ("small", "samples", 2)
    assert record.settings["model.rampup_batch_size"] == [4, 4, 2400]
    assert [stage["global_batch_size"] for stage in record.plan["stages"]] == [4, 8, 12, 16]
    assert [event["event"] for event in record.events] == ["launch"]
    assert record.last_step_at == 102.0


@pytest.mark.usefixtures("run")
def test_pandas_and_polars_take_the_metrics():
    metrics = read_run("small").metrics
    frames = pandas.DataFrame(metrics), polars.DataFrame(metrics)
    for frame in frames:
        assert list(frame["step"]) == [1, 2]
        assert list(frame["order_hash"]) == ["ab", "ab"]
        assert frame["loss"].dtype in ("float64", polars.Float64)
    assert frames[0]["loss"].isna().tolist() == [True, False]
    assert len(frames[0].columns) == len(frames[1].columns) == len(metrics)


def test_a_run_that_has_not_begun_has_no_rows(run):
    run.metrics.unlink()
    run.events.unlink()
    (run.path / "plan.json").unlink()
    record = read_run("small")
    assert (dict(record.metrics), record.events, record.plan) == ({}, [], {"stages": []})
    assert (record.last_step_at, record.time_spent().goodput) == (0.0, None)


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="is not a run directory"):
        read_run(tmp_path)
