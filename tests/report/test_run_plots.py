import json

import pytest

from rampcli.report import run_plots
from rampcli.report.run_plots import plot_runs
from rampcli.runs.record import read_run
from recorded_runs import write_run
from report.svg_texts import texts


@pytest.mark.parametrize("names", [["a"], ["a", "costs $1$ <b>"]], ids=len)
def test_a_picture_names_its_runs_and_axes_and_is_the_same_each_time(tmp_path, names):
    records = [read_run(write_run(tmp_path / name).path) for name in names]
    pictures = []
    for picture in ("x.svg", "y.svg"):
        plot_runs(records, tmp_path / picture)
        pictures.append((tmp_path / picture).read_bytes())
    assert pictures[0] == pictures[1]
    assert {*names, "global batch size", "loss", "tokens/s", "consumed samples"} <= {
        *texts(pictures[0])
    }


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("high", [50.0, None])
def test_the_noise_scale_is_drawn_beside_the_batch(high, tmp_path):
    run = write_run(tmp_path / "a")
    noise = {"grad_sq": 1.0, "noise_scale": high and 30.0, "noise_scale_low": 20.0}
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    rows[::4] = [row | noise | {"noise_scale_high": high} for row in rows[::4]]
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    plot_runs([read_run(run.path)], tmp_path / "x.svg")
    assert "noise scale" in texts((tmp_path / "x.svg").read_bytes())


@pytest.mark.filterwarnings("error")
def test_a_long_run_whose_loss_is_not_finite_is_drawn_without_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(run_plots, "MOST_LINE_POINTS", 10)
    run = write_run(tmp_path / "a", loss=None)
    plot_runs([read_run(run.path)], tmp_path / "x.svg")
    assert "loss" in texts((tmp_path / "x.svg").read_bytes())


def test_a_run_that_has_not_begun_is_drawn_as_planned(tmp_path):
    run = write_run(tmp_path / "a")
    run.metrics.unlink()
    plot_runs([read_run(run.path)], tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
