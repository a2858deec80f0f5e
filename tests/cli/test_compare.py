import json

import pytest

from recorded_runs import write_phased_run, write_run
from report.svg_texts import texts


@pytest.fixture
def runs(tmp_path):
    for name, batch in (("small", 4), ("large", 8)):
        run = write_run(tmp_path / "runs" / name)
        rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
        of_one_size = [row | {"global_batch_size": batch} for row in rows]
        run.metrics.write_text("".join(json.dumps(row) + "\n" for row in of_one_size))
        for step, loss in ((20, 4.0), (40, 3.0)):
            run.append_row(
                run.events,
                {"event": "validation", "time": 110.0 + step, "step": step, "loss": loss}
                | {"consumed_samples": batch * step, "validation_s": 0.0},
            )


@pytest.mark.usefixtures("runs")
def test_runs_show_what_they_needed_to_reach_a_loss(succeed, json_of, tmp_path):
    printed = succeed("compare", "--target-loss", "3.5", "small", "large", "--plot", "curve.svg")
    lines = [line.split() for line in printed.splitlines()]
    assert "target: validation loss <= 3.5" in printed.splitlines()
    assert ["small", "4", "40", "20", "160", "20,480", "0.014", "-"] in lines
    assert "1 / batch" in texts((tmp_path / "curve.svg").read_bytes())
    facts = json_of("compare", "--target-loss", "3.5", "small", "large")
    assert [point["sample_efficiency"] for point in facts["batches"]] == [1.0, 0.5]


@pytest.mark.usefixtures("runs")
def test_a_loss_that_no_run_has_reached_is_shown_with_the_best(succeed):
    printed = succeed("compare", "--target-loss", "1", "small", "large", "--plot", "curve.svg")
    assert "not reached by step 40 (best 3.000)" in printed
    assert "nothing to plot: no curve over the batch size" in printed


@pytest.mark.usefixtures("runs")
def test_runs_of_the_same_name_are_told_apart_by_their_paths(succeed, tmp_path):
    config = tmp_path / "runs" / "large" / "config.yaml"
    config.write_text(config.read_text().replace("name: large", "name: small"))
    for words in (["--target-loss", "3.5"], []):
        printed = succeed("compare", *words, "small", "large").split()
        assert {"runs/small", "runs/large"} <= set(printed)


def test_phases_are_compared_beside_the_settings_in_which_they_differ(succeed, json_of, tmp_path):
    write_phased_run(tmp_path / "runs/x", steps=30)
    write_phased_run(tmp_path / "runs/y", "phases.b.optim.lr=1e-4", steps=16)
    lines = [line.split() for line in succeed("compare", "x", "y", "--plot", "a.svg").splitlines()]
    assert ["b", "x", "256", "8", "10", "30.7K", "0.334", "3.000"] in lines
    assert ["b", "y", "256", "8", "6", "of", "10", "30.7K", "-", "-"] in lines
    assert ["phases.b.optim.lr", "unset", "0.0001"] in lines
    assert "consumed tokens" in texts((tmp_path / "a.svg").read_bytes())
    facts = json_of("compare", "x", "y")
    losses = [run["phases"][1]["validation_losses"]["loss"] for run in facts["runs"]]
    assert losses == [{"": 3.0}, {}]


@pytest.mark.usefixtures("runs")
def test_runs_without_phases_are_compared_without_them(succeed):
    assert "phase" not in succeed("compare", "small", "large")
