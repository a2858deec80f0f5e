import json
import shutil

import pytest

from rampcli.report.page_data import View, run_data
from rampcli.runs.directory import RunDirectory
from rampcli.runs.followed_run import FollowedRun
from recorded_runs import write_run
from report.written_page import data_of

SIZE = ("parameters", "embedding_parameters", "tokens", "settings_problem")


@pytest.fixture
def runs(tmp_path):
    write_run(tmp_path / "runs/first")
    write_run(tmp_path / "runs/second", "optim.lr=0.5", loss=2.0)


@pytest.mark.usefixtures("runs")
def test_a_report_shows_stages_time_and_goodput(succeed):
    printed = succeed("report", "first")
    for line in (
        "first: preempted after 240 samples, 40 steps; runs/first",
        "    1      8      2          2  160 of 320  20 of 40  0.113     1,024",
        "validation              0:03   4.3%",
        "goodput 87.1%: the share of the running time that went into steps that count",
        "validation loss 5.500",
    ):
        assert line in printed.splitlines()


@pytest.mark.usefixtures("runs")
def test_runs_are_compared_with_the_settings_in_which_they_differ(succeed):
    printed = succeed("compare", "first", "runs/second")
    assert printed == succeed("report", "runs/first", "second", "first")
    rows = [line.split() for line in printed.splitlines()]
    assert ["loss", "0.113", "0.057"] in rows
    assert ["optim.lr", "0.006", "0.5"] in rows


@pytest.mark.usefixtures("runs")
def test_a_report_names_the_profiles_of_a_run(succeed, json_of, tmp_path):
    operator = {"name": "aten::mm", "calls": 21, "self_cpu_s": 0.5}
    RunDirectory(tmp_path / "runs/first").append_event(
        "profile",
        step=12,
        consumed_samples=48,
        rank=0,
        steps=[10, 12],
        files=["profile/steps_10-12.rank_0.json.gz"],
        operators=[operator],
    )
    lines = succeed("report", "first").splitlines()
    assert lines[-4] == "most expensive operators of steps 10 to 12 on rank 0:"
    assert lines[-2].split() == ["aten::mm", "21", "500.0", "ms"]
    assert lines[-1] == "profile: runs/first/profile/steps_10-12.rank_0.json.gz"
    facts = json_of("report", "first")
    assert facts["runs"][0]["profiles"][0]["operators"] == [operator]


@pytest.mark.usefixtures("runs")
def test_json_is_printed_alone_and_a_picture_is_written(json_of, tmp_path):
    facts = json_of("report", "first", "second", "--plot", "x.svg")
    assert [one["name"] for one in facts["runs"]] == ["first", "second"]
    assert facts["runs"][0]["goodput"] == pytest.approx(61 / 70)
    assert facts["differences"] == {"optim.lr": ["0.006", "0.5"]}
    assert (tmp_path / "x.svg").exists()


@pytest.mark.usefixtures("runs")
def test_the_size_of_a_model_is_the_same_in_a_report_its_json_its_page_and_the_live_page(
    succeed, json_of, tmp_path
):
    config = tmp_path / "runs/second/config.yaml"
    config.write_text(config.read_text().replace("model:\n", "model:\n  of_tomorrow: 1\n", 1))
    known = [742_784, 32_768, 240 * 128, None]
    text = "743K parameters, 32.8K of them embeddings; 0.0414 tokens per parameter so far"
    problem = "there is no setting model.of_tomorrow"
    unknown = f"its size is unknown, as this version refuses its settings: {problem}"
    for name, facts, line in (
        ("first", known, text),
        ("second", [None, None, 240 * 128, problem], unknown),
    ):
        printed = succeed("report", name, "--html", "report.html")
        assert f"model: {line}" in printed.splitlines()
        assert printed.endswith("wrote report.html\n")
        (reported,) = json_of("report", name)["runs"]
        (written,) = data_of((tmp_path / "report.html").read_text())["runs"]
        live = FollowedRun(name, RunDirectory(tmp_path / "runs" / name))
        live.read()
        for shown in (reported, written, run_data(live, View())):
            assert [shown[key] for key in SIZE] == facts
    rows = [line.split() for line in succeed("compare", "first", "second").splitlines()]
    assert ["parameters", "743K", "-"] in rows
    assert ["model.of_tomorrow", "unset", "1"] in rows


@pytest.mark.usefixtures("runs")
def test_names_and_errors_of_a_stranger_are_escaped(succeed, tmp_path):
    shutil.copytree(tmp_path / "runs/first", tmp_path / "runs/evil")
    (tmp_path / "runs/evil/state.json").write_text(
        json.dumps(
            {"status": "\x1b[2J[red]", "step": 1, "consumed_samples": 1, "stage": 0, "next": None}
        )
    )
    RunDirectory(tmp_path / "runs/evil").append_event(
        "profile",
        step=1,
        rank=0,
        steps=[1, 1],
        files=[],
        operators=[{"name": "\x1b[2J[/red]", "calls": 1, "self_cpu_s": 1.0}],
    )
    report = succeed("report", "evil")
    assert r"\x1b[2J[/red]" in report
    for printed in (report, succeed("compare", "first", "evil")):
        assert "\x1b" not in printed
        assert r"\x1b[2J[red]" in printed
