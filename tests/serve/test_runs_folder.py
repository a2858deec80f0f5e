import json

import pytest

from rampcli.files.locks import hold
from rampcli.runs.metrics import GOALS, REWARD, Metric
from rampcli.serve import runs_folder
from rampcli.serve.runs_folder import RunsFolder
from recorded_runs import write_run
from run_files import metrics_row, state


@pytest.fixture(autouse=True)
def always_list(monkeypatch):
    monkeypatch.setattr(runs_folder, "LIST_AGAIN_S", 0.0)


@pytest.fixture
def folder(tmp_path):
    write_run(tmp_path / "mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "file").touch()
    return RunsFolder(tmp_path)


def test_runs_are_listed_with_their_last_row(folder):
    (run,) = folder.runs()
    assert (run["name"], run["status"], run["damage"]) == ("mine", "preempted", None)
    assert (run["row"]["step"], run["goals"], run["trains"]) == (40, [goal("loss", 0.1)], False)


def goal(name, value):
    return {"name": name, "value": value}


@pytest.mark.parametrize(
    ("row", "goals"),
    [
        ({"loss": None}, []),
        ({"loss": 2.0, "reward": None}, [goal("loss", 2.0)]),
        ({"loss": 2.0, "reward": 0.5}, [goal("reward", 0.5)]),
        ({"loss": 2.0, "wins": 3}, [goal("won", 3), goal("loss", 2.0)]),
    ],
)
def test_runs_are_listed_with_the_goals_that_metrics_declare(folder, monkeypatch, row, goals):
    wins = Metric("wins", "", chart=REWARD, tile="won", is_goal=True)
    monkeypatch.setattr(runs_folder, "GOALS", (*GOALS, wins))
    run = folder.find("mine")
    run.metrics.write_text(json.dumps(metrics_row(step=41, **row)) + "\n")
    assert folder.runs()[0]["goals"] == goals


def test_a_single_run_directory_is_a_folder_of_one_run(folder):
    single = RunsFolder(folder.path / "mine")
    assert [run["name"] for run in single.runs()] == ["mine"]
    assert single.find("mine").path == folder.path / "mine"


def test_new_runs_and_new_rows_appear(folder):
    assert folder.runs()[0]["row"]["step"] == 40
    run = write_run(folder.path / "later")
    with (folder.path / "mine" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(metrics_row(step=41)) + "\n")
    assert {one["name"]: one["row"]["step"] for one in folder.runs()} == {"mine": 41, "later": 40}
    run.write_state(state(status="complete"))
    assert {one["name"]: one["status"] for one in folder.runs()}["later"] == "complete"


def test_a_run_that_holds_its_lock_trains(folder):
    run = folder.find("mine")
    run.write_state(state(status="running"))
    with hold(run.lock):
        assert folder.runs()[0]["trains"] is True
    assert folder.runs()[0]["trains"] is False


def test_a_damaged_run_is_listed_with_its_error_beside_the_others(folder):
    damaged = write_run(folder.path / "damaged")
    (damaged.path / "state.json").write_text("[")
    found = {run["name"]: run["damage"] for run in folder.runs()}
    assert found["mine"] is None
    assert "state.json" in found["damaged"]


def test_links_are_listed_but_not_followed(folder, tmp_path_factory):
    outside = write_run(tmp_path_factory.mktemp("outside") / "secret")
    (folder.path / "link").symlink_to(outside.path)
    found = {run["name"]: run["damage"] for run in folder.runs()}
    assert "symbolic link" in found["link"]
    assert folder.find("link") is None


def test_links_in_a_circle_do_not_hide_the_runs(folder):
    (folder.path / "circle").symlink_to("circle")
    assert [run["name"] for run in folder.runs()] == ["mine"]
    assert folder.find("mine") is not None


@pytest.mark.parametrize("name", ["..", ".", "", "mine/../mine", "/etc", "file", "other", "mine\0"])
def test_only_names_of_runs_are_found(folder, name):
    assert folder.find(name) is None
    assert folder.find("mine") is not None


def test_a_folder_that_does_not_exist_yet_has_no_runs(tmp_path):
    assert RunsFolder(tmp_path / "none").runs() == []
