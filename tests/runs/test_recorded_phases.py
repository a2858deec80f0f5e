"""A run in phases as its viewers see it: from the files of its run directory."""

import json

import pytest

from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.launch.status import read_status
from rampcli.planning.resolve import resolve
from rampcli.report.page_data import View, run_data
from rampcli.report.run_plots import plot_runs
from rampcli.report.run_report import report_run
from rampcli.report.run_text import stage_table, summary_lines
from rampcli.runs.facts import read_facts
from rampcli.runs.followed_run import FollowedRun
from rampcli.runs.record import read_run
from rampcli.runs.recorded_phases import has_several_lengths, length_at, phase_of, tokens_at
from recorded_runs import PHASES, write_phased_run
from report.svg_texts import texts
from report.table_cells import cells

TAKEN = 16
"""Steps that the run has taken: it is in its second phase."""


@pytest.fixture(scope="module")
def plan():
    return resolve(apply_overrides(llm.from_factory("llama3_tiny"), PHASES))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_phased_run(tmp_path_factory.mktemp("runs") / "a", steps=TAKEN)


def test_tokens_and_phases_of_a_recorded_plan_are_those_of_the_plan(plan):
    recorded = json.loads(json.dumps(plan.plan.to_json()))
    for samples in range(plan.plan.end_sample + 1):
        assert tokens_at(recorded, samples) == plan.plan.tokens_at(samples)
    for stage in plan.plan.stages:
        assert phase_of(recorded, stage.stage) == plan.of(stage).name
        assert length_at(recorded, stage.end_sample) == plan.plan.of(stage).sequence_length
    assert (tokens_at(None, 5), phase_of(None, 0), length_at({}, 3)) == (None, None, None)


def test_everything_that_shows_a_run_names_its_phase_and_counts_its_tokens(run, plan):
    tokens = plan.plan.tokens_at(8 * TAKEN)
    facts = read_facts(run)
    assert (facts.phase, facts.tokens(unit="samples")) == ("b", tokens)
    report = report_run(read_run(run))
    assert (report.to_json()["phase"], report.tokens) == ("b", tokens)
    assert [stage["phase"] for stage in report.to_json()["stages"]] == ["a", "b", "c"]
    assert cells(stage_table(report))["phase"] == ["a", "b", "c"]
    assert "in phase b" in next(summary_lines(report))
    assert read_status(run).to_json()["phase"] == "b"


def test_the_page_places_a_phased_run_on_its_tokens(run, plan):
    followed = FollowedRun("a", run)
    followed.read()
    data = run_data(followed, View())
    assert data["phase"] == "b"
    assert data["curves"]["validation"]["x"]["tokens"] == [plan.plan.tokens_at(80)]
    assert data["trained"]["edges"]["tokens"][-1] == plan.plan.tokens_at(8 * TAKEN)


def test_the_time_left_grows_with_the_length_of_the_samples(run):
    stage_s, run_s = read_facts(run).time_left()
    assert stage_s == pytest.approx(4.0)  # steps of one second
    assert run_s == pytest.approx(4.0 + 10 / 4)  # and ten steps with a quarter of the tokens


def test_a_picture_of_a_phased_run_counts_tokens(run, tmp_path):
    plot_runs([read_run(run)], tmp_path / "a.svg")
    assert "consumed tokens" in texts((tmp_path / "a.svg").read_bytes())


def test_lengths_differ_within_runs_in_phases_and_between_them_and_others():
    phases = {"phases": [{"sequence_length": 128}, {"sequence_length": 128}]}
    short, long, unknown = {"sequence_length": 128}, {"sequence_length": 256}, {"stages": []}
    assert not has_several_lengths(phases, short, unknown, None)
    assert has_several_lengths(phases, long)
    assert has_several_lengths({"phases": [{"sequence_length": 64}, {"sequence_length": 128}]})
    assert not has_several_lengths(short, long)
