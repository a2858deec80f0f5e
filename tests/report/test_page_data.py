import json

import numpy as np
import pytest

from rampcli.report.page_data import X_AXES, View, run_data
from rampcli.runs.followed_run import FollowedRun
from rampcli.runs.metrics import CHARTED, Chart, Metric
from recorded_runs import STEPS, write_run
from run_files import metrics_row


@pytest.fixture
def write(tmp_path):
    """Returns a function that writes a run and returns it as a page follows it."""

    def make(*rows):
        run = FollowedRun("mine", write_run(tmp_path / "mine"))
        if rows:
            text = "".join(json.dumps(row) + "\n" for row in rows)
            run.directory.metrics.write_text(text)
        run.read()
        assert run.damage is None
        return run

    return make


def test_a_short_run_is_shown_row_by_row(write):
    data = run_data(write(), View())
    series = data["series"]
    assert len(series["x"]["steps"]) == 2 * STEPS
    assert series["columns"]["loss"]["mean"][:2] == [None, 2.0]
    assert "low" not in series["columns"]["loss"]
    assert "mfu" not in series["columns"]
    json.dumps(data, allow_nan=False)


def test_all_axes_begin_before_the_first_step_and_end_with_the_last(write):
    trained = run_data(write(), View())["trained"]
    assert {axis: places[0] for axis, places in trained["edges"].items()} == {
        "samples": 0,
        "steps": 0,
        "tokens": 0,
        "time": 10,
    }
    assert {axis: places[-1] for axis, places in trained["edges"].items()} == {
        "samples": 240,
        "steps": 40,
        "tokens": 240 * 128,
        "time": 70,
    }
    assert [part["global_batch_size"] for part in trained["parts"]] == [4, 8]
    assert [part["steps_s"] for part in trained["parts"]] == [40, 20]


@pytest.mark.parametrize("axis", X_AXES)
def test_a_part_of_a_run_is_shown_in_finer_buckets(write, axis):
    rows = [
        metrics_row(step=step, consumed_samples=4 * step, time=100.0 + step, loss=step % 7)
        for step in range(1, 3001)
    ]
    run = write(*(row | {"consumed_tokens": 512 * row["step"]} for row in rows))
    whole = run_data(run, View(axis=axis, buckets=100))
    places = whole["series"]["x"][axis]
    part = run_data(run, View(axis=axis, low=places[49], high=places[52], buckets=100))
    first, end = part["shown"]
    assert (len(places), whole["series"]["bucket_rows"]) == (100, 30)
    assert (first, end) == pytest.approx((1499, 1590), abs=3)
    assert part["series"]["bucket_rows"] == 1
    assert part["series"]["x"][axis][0] <= places[49]
    assert part["series"]["x"][axis][-1] >= places[52]


def test_extremes_of_a_long_run_are_kept(write):
    losses = np.full(20_000, 2.0)
    losses[[7000, 13_001]] = [50.0, 0.5]
    run = write(
        *(
            metrics_row(step=step + 1, consumed_samples=4 * (step + 1), loss=loss)
            for step, loss in enumerate(losses)
        )
    )
    loss = run_data(run, View(buckets=50))["series"]["columns"]["loss"]
    assert (max(loss["high"]), min(loss["low"])) == (50.0, 0.5)


def test_a_run_of_an_earlier_version_has_a_time_axis_of_its_steps(write):
    run = write(*(metrics_row(step=step, consumed_samples=4 * step) for step in (1, 2, 3)))
    assert run_data(run, View())["series"]["x"]["time"] == [0.5, 1.0, 1.5]


def test_marks_and_validations_have_places_on_all_axes(write):
    data = run_data(write(), View())
    assert data["curves"]["validation"] == {
        "x": {"samples": [0], "steps": [0], "tokens": [0], "time": [10]},
        "y": [5.5],
        "last": 5.5,
    }
    assert data["marks"]["validation"]["count"] == 1
    assert "validation of the averaged weights" not in data["curves"]


def test_the_validations_of_averaged_weights_are_a_curve(write):
    run = write()
    place = {"step": 2 * STEPS, "consumed_samples": 240}
    run.directory.append_event("validation", **place, loss=3.0, ema_loss=2.5)
    run.read()
    curve = run_data(run, View())["curves"]["validation of the averaged weights"]
    assert (curve["x"]["steps"], curve["y"]) == ([2 * STEPS], [2.5])


@pytest.mark.parametrize(
    ("columns", "tiles"),
    [
        ({"mfu": 0.4, "peak_memory_bytes": 9}, ["loss", "tokens/s", "MFU", "peak memory"]),
        ({"reward": None, "solved": 0.5}, ["reward", "solved", "tokens/s"]),
    ],
)
def test_the_summary_has_what_was_measured_and_a_reward_in_place_of_the_loss(write, columns, tiles):
    data = run_data(write(metrics_row(**columns)), View())
    assert [tile["name"] for tile in data["tiles"]] == tiles


def test_a_histogram_counts_every_step_or_says_that_it_is_slower(write):
    histogram = run_data(write(), View())["histogram"]
    assert sum(histogram["counts"]) + histogram["slower"] == 2 * STEPS
    assert (histogram["edges"][0], histogram["most"]) == (1, 2)


def test_the_tokens_of_responses_are_those_of_the_steps(write):
    rows = [
        metrics_row(step=step, consumed_samples=4 * step, reward=0.5, consumed_tokens=None)
        for step in (1, 2)
    ]
    assert run_data(write(*rows), View())["series"]["x"]["tokens"] == [512, 1024]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [5e-324, 1e-320, 1e17])
def test_numbers_at_the_ends_of_what_a_float_holds_are_data_of_a_page(write, value):
    charted = dict.fromkeys(CHARTED, value)
    rows = [metrics_row(step=step, consumed_samples=4 * step) | charted for step in range(1, 4)]
    run = write(*rows)
    for axis in X_AXES:
        json.dumps(run_data(run, View(axis=axis, buckets=2)), allow_nan=False)


def test_a_run_that_declares_a_metric_later_is_shown_with_its_chart(write):
    run = write()
    lines = run.directory.metrics.read_text().splitlines()
    rows = [json.loads(line) | {"norm_1": 2.0, "norm_2": 3.0} for line in lines]
    run.directory.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    chart = Chart("norms", "Norms")
    run.directory.write_columns([Metric("norm_1", "", chart=chart), Metric("norm_2", "")])
    run.read()
    data = run_data(run, View())
    assert data["charts"][-1]["columns"] == {"norm_1": "norm_1"}
    assert data["series"]["columns"]["norm_1"]["mean"] == [2.0] * 2 * STEPS
    assert "norm_2" not in data["series"]["columns"]  # it has no chart
    assert len(data["series"]["columns"]["loss"]["mean"]) == 2 * STEPS
