"""Metrics that observers declare."""

import json
from dataclasses import replace

import pytest

from rampcli.errors import DamagedFileError
from rampcli.runs.directory import RunDirectory
from rampcli.runs.metrics import (
    LOSS,
    METRICS,
    MOST_DECLARED,
    Chart,
    Metric,
    charts_of,
    check_declared,
    columns_json,
)

NORMS = Chart("norms", "Norms", unit="of weights", log=True)
NORM = Metric("norm_1", "norm", unit="m", group="layers", chart=NORMS, label="one", summary="last")
PLAIN = Metric("plain", "nothing else is declared")


def test_a_run_lists_the_metrics_that_its_observers_declare_now_or_did_before(tmp_path):
    run = RunDirectory(tmp_path)
    assert run.read_columns() == ()
    run.write_columns([NORM, PLAIN])
    assert run.read_columns() == (NORM, PLAIN)
    run.write_columns([replace(PLAIN, unit="s")])
    assert run.read_columns() == (replace(PLAIN, unit="s"), NORM)
    other = Metric("other", "", chart=replace(NORMS, title="Other norms"))
    run.write_columns([other])  # two charts cannot have one id
    assert run.read_columns() == (other, replace(PLAIN, unit="s"))


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        ([Metric("loss", "")], "another metric loss"),
        ([PLAIN, PLAIN], "another metric plain"),
        ([Metric("a b", "")], "not a name"),
        ([Metric("__proto__", "")], "not a name"),
        ([Metric("a", "", group="../b")], "not a name"),
        ([Metric("a", "", chart=replace(LOSS, title="My loss"))], "another chart loss"),
        ([Metric("a", "", summary="sum")], "summary=sum is not one of"),  # type: ignore[arg-type]
        ([Metric(f"a{number}", "") for number in range(MOST_DECLARED + 1)], "more than 400"),
    ],
)
def test_a_metric_that_a_run_cannot_have_is_refused_and_in_the_file_of_a_run_left_out(
    metrics, reason, tmp_path
):
    with pytest.raises(ValueError, match=reason):
        check_declared(metrics)
    run = RunDirectory(tmp_path)
    run.columns.write_text(json.dumps(columns_json([NORM, *metrics])))
    left = run.read_columns()
    assert left[0] == NORM
    check_declared(left)
    assert len(left) == min(len(metrics), MOST_DECLARED)


@pytest.mark.parametrize("content", ["[]", '{"metrics": [{"name": 1}]}', "{"])
def test_a_damaged_list_is_refused(content, tmp_path):
    run = RunDirectory(tmp_path)
    run.columns.write_text(content)
    with pytest.raises(DamagedFileError, match=r"columns\.json is damaged"):
        run.read_columns()


def test_numbers_of_ranks_become_their_sum_or_a_norm_and_nothing_else():
    with pytest.raises(ValueError, match="over_ranks=max is neither sum nor norm"):
        check_declared([Metric("a", "", over_ranks="max")])  # type: ignore[arg-type]


def test_a_chart_draws_the_metrics_that_name_it_beside_those_of_the_program():
    charts = {chart["id"]: chart for chart in charts_of([NORM, Metric("ema", "", chart=LOSS)])}
    assert charts["loss"]["columns"] == {"loss": "training", "ema": "ema"}
    assert charts["norms"]["columns"] == {"norm_1": "one"}
    assert (charts["norms"]["unit"], charts["norms"]["show"]) == ("of weights", "m")
    assert (charts["mfu"]["unit"], charts["mfu"]["show"]) == ("share of the peak", "share")
    json.dumps([*charts.values()])


def test_every_metric_of_the_program_says_what_it_is_and_is_named_once():
    check_declared([replace(one, name=f"x_{name}") for name, one in METRICS.items()])
    assert all(one.doc for one in METRICS.values())
