"""`rampcli.run` in threads of one process, with observers."""

import json

import pytest

from commands import Command
from tiny_runs import Run, environment

ROOT = "tests/cli/api_runs.py"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The runs of api_runs.py, and what it reports about each."""
    folder = tmp_path_factory.mktemp("threads")
    program = Command([str(folder)], environment(), program="cli.api_runs")
    output, errors = program.communicate()
    assert program.returncode == 0, errors
    return folder, json.loads((folder / "results.json").read_text()), output


@pytest.mark.parametrize("name", ["one", "two"])
def test_runs_in_two_threads_complete_and_each_observer_hears_its_own(results, name):
    folder, facts, _ = results
    heard = facts[name]["heard"]
    assert facts[name]["ended"] == ["complete", 0]
    assert heard[0] == ["start", 0, 1, 0]
    assert [each for each in heard if isinstance(each, int)] == [1, 2, 3, 4, 5]
    assert [row["step"] for row in Run(folder / name).rows] == [1, 2, 3, 4, 5]
    assert heard.count("validation") == 2


def test_an_observer_that_fails_stops_its_run_which_saves_and_its_error_is_raised(results):
    folder, facts, output = results
    run = Run(folder / "failing")
    assert facts["failing"]["ended"] == "the observer failed"
    assert facts["failing"]["heard"][-1] == 3
    assert (run.state["status"], run.state["step"]) == ("preempted", len(run.rows))
    assert "with a checkpoint in" in output
