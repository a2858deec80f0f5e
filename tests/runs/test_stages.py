import json

import pytest

from rampcli.cli.status import details
from rampcli.launch.status import read_status
from rampcli.report.run_report import report_run
from rampcli.report.run_text import (
    closing_lines,
    phases_table,
    runs_table,
    stage_table,
    summary_lines,
)
from rampcli.runs.record import read_run
from rampcli.runs.stages import Spans, trained_stages
from recorded_runs import write_phased_run, write_run
from report.table_cells import cells

ENDS = {"a": 10 * 8 * 128, "b": 10 * 8 * (128 + 256), "c": 10 * 8 * (128 + 256 + 64)}
"""Tokens of the run at the end of each phase."""


@pytest.fixture
def write(tmp_path):
    """Returns a function that writes a run in phases and reports it."""

    def make(name, *words, **steps):
        return report_run(read_run(write_phased_run(tmp_path / name, *words, **steps)))

    return make


def test_a_phase_that_has_ended_has_the_losses_of_its_last_steps_and_of_its_own_validation(write):
    a, b, c = write("run", steps=25).phases
    assert {phase.name: phase.end_token for phase in (a, b, c)} == ENDS
    assert [phase.sequence_length for phase in (a, b, c)] == [128, 256, 64]
    assert [(phase.steps, phase.planned_steps) for phase in (a, b, c)] == [(10, 10)] * 2 + [(5, 10)]
    assert a.loss == pytest.approx(sum(5.0 / step for step in range(1, 11)) / 10)
    assert (a.validation_losses["loss"], b.validation_losses["loss"]) == ({"": 4.0}, {"": 3.0})
    assert (c.loss, c.validation_losses["loss"]) == (None, {})


def test_the_report_says_the_validation_loss_of_each_phase(write):
    line = "validation loss at the end of each phase: a 4.000, b 3.000"
    assert line in [*closing_lines(write("run", steps=25))]


def test_each_corpus_and_the_averaged_weights_have_losses_of_their_own(tmp_path):
    run = write_phased_run(tmp_path / "run", steps=30)
    place = {"step": 30, "consumed_samples": 240, "phase": "c", "validation_s": 0.0}
    for corpus, loss in (("wiki", 2.5), ("wiki", 2.25), ("code", None)):
        run.append_event("validation", **place, corpus=corpus, loss=loss, ema_loss=loss)
    report = report_run(read_run(run))
    found = report.phases[-1].validation_losses
    assert found == {"loss": {"": 2.0, "wiki": 2.25}, "ema_loss": {"wiki": 2.25}, "merge_loss": {}}
    table = cells(phases_table([report]))
    assert table["validation loss"] == ["4.000", "3.000", "2.000"]
    assert table["validation loss wiki"] == ["-", "-", "2.250"]
    assert table["of the averaged weights wiki"] == ["-", "-", "2.250"]


def test_phases_of_one_name_are_beside_each_other(write):
    words = ("phases.d.until=steps:35", "phases.a.model.global_batch_size=16")
    table = cells(phases_table([write("x", steps=30), write("y", *words, steps=0)]))
    assert table["phase"] == ["a", "a", "b", "b", "c", "c", "d"]
    assert table["run"] == ["x", "y"] * 3 + ["y"]
    assert table["batch"][:4] == ["8", "16", "8", "8"]
    assert table["steps"][:2] == ["10", "0 of 10"]
    assert table["tokens at end"][:2] == ["10.2K", "20.5K"]
    assert table["loss"][1] == "-"


def test_phases_before_the_checkpoint_of_another_run_are_not_shown_as_untrained(write):
    report = write("run", steps=16, origin=10)
    assert [stage.is_inherited for stage in report.stages] == [True, False, False]
    assert [phase.is_inherited for phase in report.phases] == [True, False, False]
    assert cells(stage_table(report))["steps"] == ["-", "6 of 10", "0 of 10"]
    assert cells(phases_table([report]))["steps"] == ["-", "6 of 10", "0 of 10"]
    assert [*summary_lines(report)][1] == (
        "continues runs/other after step 10; phases trained before that, not in this run: a"
    )
    assert report.to_json()["origin"] == {"run": "runs/other", "step": 10, "consumed_samples": 80}
    assert cells(runs_table([report, report]))[report.name][1] == "runs/other after step 10"


def test_time_before_a_run_that_continues_another_one_starts_is_none_of_it(tmp_path):
    run = write_phased_run(tmp_path / "run", steps=16, origin=10)
    events = run.events.read_text().splitlines(keepends=True)
    assert '"branch"' in events[0]
    run.events.write_text("".join([events[0].replace("110.0", "1.0"), *events[1:]]))
    assert read_run(run).facts.events.started == 110.0
    assert report_run(read_run(run)).time.elapsed_s == 6.0


def test_a_status_names_the_run_that_another_one_continues_however_many_events_there_are(tmp_path):
    run = write_phased_run(tmp_path / "run", steps=16, origin=10)
    with run.events.open("a") as file:
        file.write(10_000 * '{"event": "stage", "time": 120.0, "step": 16, "stage": 1}\n')
    status = read_status(run)
    assert status.facts.events.counts["stage"] < 10_000
    assert status.to_json()["origin"] == {"run": "runs/other", "step": 10, "consumed_samples": 80}
    assert "continues runs/other after step 10" in [*details(run, status)]


def test_steps_that_a_run_has_taken_again_are_its_own(write):
    run = write("run", steps=16)
    origin = {"event": "branch", "run": "x", "step": 10, "consumed_samples": 80, "time": 1.0}
    run.facts.events.add([origin])
    stages = trained_stages(run.facts, Spans(run.record.metrics))
    assert not any(stage.is_inherited for stage in stages)


def test_a_run_without_phases_has_none(tmp_path):
    report = report_run(read_run(write_run(tmp_path / "run")))
    assert report.to_json()["phases"] == []


def test_the_json_of_a_report_has_its_phases(write):
    phases = json.loads(json.dumps(write("run", steps=16).to_json()))["phases"]
    assert [phase["name"] for phase in phases] == ["a", "b", "c"]
    assert phases[0]["end_token"] == ENDS["a"]
    assert phases[0]["validation_losses"]["loss"] == {"": 4.0}
