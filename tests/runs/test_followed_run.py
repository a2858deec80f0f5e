import json
import time

import numpy as np
import pytest

from rampcli.report.page_data import View, run_data
from rampcli.runs.followed_run import FollowedRun
from recorded_runs import STEPS, write_run
from run_files import metrics_row


@pytest.fixture
def run(tmp_path):
    return FollowedRun("mine", write_run(tmp_path / "mine"))


def append(run, *steps, **facts):
    with run.directory.metrics.open("a") as file:
        for step in steps:
            row = metrics_row(step=step, consumed_samples=8 * step, time=200.0 + step, **facts)
            file.write(json.dumps(row) + "\n")


def test_a_run_is_read_on_as_it_grows(run):
    assert run.read()
    version = run.version
    assert run.read()
    assert run.version == version
    append(run, 41, 42)
    assert run.read()
    assert run.version > version
    assert run_data(run, View())["last"]["step"] == 42


def test_rows_that_a_resume_drops_vanish(run):
    run.read()
    run.directory.drop_rows_after(10)
    append(run, 11, loss=9.0)
    run.read()
    data = run_data(run, View())
    assert data["rows"] == 11
    assert data["series"]["columns"]["loss"]["mean"][-1] == 9.0
    assert [line["kind"] for line in data["log"]] == ["preempted", "lost"]


def test_rows_are_summarised_anew_after_a_resume_of_a_long_run(run):
    append(run, *range(41, 1000), loss=5.0)
    run.read()
    run.directory.drop_rows_after(500)
    append(run, *range(501, 1000), loss=7.0)
    run.read()
    loss = run.columns["loss"]
    _, _, totals, _ = run.blocks["loss"].parts
    assert totals.sum() == pytest.approx(np.nansum(loss[: len(loss) // 64 * 64]))


def test_a_damaged_file_is_named_and_what_was_read_before_stays(run):
    run.read()
    with run.directory.metrics.open("a") as file:
        file.write('{"step": "none"}\n')
    run.read()
    data = run_data(run, View())
    assert "metrics.jsonl" in data["damage"]
    assert data["rows"] == 2 * STEPS
    run.directory.metrics.write_text("")
    run.read()
    assert run.damage is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.yaml", "a: &x [*x]"),
        ("plan.json", '{"stages": 3}'),
        ("state.json", "[1"),
        ("events.jsonl", '{"event": "lost"}\n'),
        ("responses.jsonl", "{}\n"),
    ],
)
def test_each_damaged_file_is_named_and_does_not_hide_the_others(run, name, content):
    sound = (run.directory.path / name).read_text() if name != "responses.jsonl" else ""
    (run.directory.path / name).write_text(content)
    for _ in range(2):
        run.read()
        assert name in run.damage
    shown = run.settings.values != {}, run.facts.plan is not None, run.columns.rows
    assert shown == (name != "config.yaml", name != "plan.json", 2 * STEPS)
    json.dumps(run_data(run, View()), allow_nan=False)
    (run.directory.path / name).write_text(sound)
    run.read()
    assert run.damage is None


def test_a_file_that_could_not_be_read_for_a_moment_is_read_again(run, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(type(run.directory), "read_plan", lambda _: 1 / 0)
        run.read()
        assert "zero" in run.damage
        version = run.version
    run.read()
    assert (run.damage, run.facts.plan is None) == (None, False)
    assert run.version > version


def test_events_that_replace_others_are_read_from_their_beginning(run):
    run.read()
    counts, version = run.facts.events.counts, run.version
    other, text = run.directory.path / "other", run.directory.events.read_text()
    for replacement in (text, text.replace("validation", "evaluatioX")):  # of the same length
        other.write_text(replacement)
        other.replace(run.directory.events)
        run.read()
        assert sum(run.facts.events.counts.values()) == sum(counts.values())
        assert (run.facts.events.counts == counts) == (None in run.facts.events.validations)
        assert run.version > version
        version = run.version
    assert not run.facts.events.validations


def test_a_server_that_was_restarted_gives_no_version_of_the_one_before(run, monkeypatch):
    run.read()
    later = time.time_ns() + 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)
    assert FollowedRun("mine", run.directory).version > run.version


def test_rows_before_a_damaged_one_are_shown(run):
    append(run, *range(41, 20_001))
    with run.directory.metrics.open("a") as file:
        file.write("[]\n")
    run.read()
    data = run_data(run, View())
    assert (data["rows"], data["last"]["step"], data["reading"]) == (20_000, 20_000, 1)
    assert "metrics.jsonl" in data["damage"]


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.yaml", "events.jsonl", "plan.json"])
def test_links_in_a_run_are_not_followed(run, tmp_path, name):
    secret = tmp_path / "secret"
    (run.directory.path / name).rename(secret)
    (run.directory.path / name).symlink_to(secret)
    run.read()
    assert "symbolic link" in run.damage
    assert (run.columns.rows, run.settings.values, run.facts.events.counts) == (0, {}, {})


def test_a_large_file_is_read_piece_by_piece(run):
    append(run, *range(41, 20_001))
    progress = []
    while not run.read(most_bytes=2**20):
        progress.append(run.progress)
    assert 0 < progress[0] < 1
    assert progress == sorted(progress)
    assert run.columns.rows == 20_000


def test_a_file_that_is_read_in_pieces_shows_the_newest_steps_from_the_first_piece_on(run):
    append(run, *range(41, 10_000))
    assert not run.read(most_bytes=2**16)
    assert run.facts.step == 9_999


def test_a_run_before_its_first_step_has_no_points(tmp_path):
    run = FollowedRun("new", write_run(tmp_path / "new"))
    run.directory.metrics.unlink()
    run.read()
    data = run_data(run, View())
    assert (data["rows"], data["damage"], data["trained"]["parts"]) == (0, None, [])
    assert data["plan"]["stages"]


def test_the_last_responses_are_shown_with_control_characters_written_out(run):
    run.directory.append_row(
        run.directory.responses,
        {"step": 4, "prompt": "2+2=", "response": "4\x1b[31m\n‮", "reward": 1.0},
    )
    run.read()
    assert run.texts == [
        {"step": 4, "prompt": "2+2=", "text": "4\\x1b[31m\n\\u202e", "note": "reward 1.0"}
    ]
