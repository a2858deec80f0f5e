import json

import pytest

from rampcli.launch.local import Feed, Observer, Tail
from rampcli.run_directory import RunDirectory, append_row


class Listener(Observer):
    def __init__(self):
        self.heard = []

    def on_row(self, row):
        self.heard.append(row["step"])

    def on_event(self, row):
        self.heard.append(row["event"])


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path)


def take_steps(run, *steps):
    for step in steps:
        append_row(run.metrics, {"step": step, "loss": 1 / step})


def test_a_tail_gives_each_new_row_once_and_waits_for_the_end_of_a_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"old": 1}\n')
    tail = Tail(path)
    tail.skip()
    assert list(tail.rows()) == []
    with path.open("a") as file:
        file.write('{"a": 1}\n{"b"')
    assert list(tail.rows()) == [{"a": 1}]
    with path.open("a") as file:
        file.write(": 2}\n")
    assert list(tail.rows()) == [{"b": 2}]
    assert list(tail.rows()) == []


def test_a_row_that_replaces_one_that_was_cut_off_is_read_whole(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"old": 1}\n{"cut o')
    tail = Tail(path)
    tail.skip()
    append_row(path, {"new": "longer than what was cut off"})
    assert list(tail.rows()) == [{"new": "longer than what was cut off"}]


def test_a_file_that_does_not_exist_yet_has_no_rows(tmp_path):
    tail = Tail(tmp_path / "rows.jsonl")
    tail.skip()
    assert list(tail.rows()) == []
    (tmp_path / "rows.jsonl").write_text('{"step": 1}\n')
    assert list(tail.rows()) == [{"step": 1}]


@pytest.mark.parametrize("steps_before_the_next_look", range(6))
def test_steps_that_are_taken_again_are_told_however_late_one_looks(run, steps_before_the_next_look):
    take_steps(run, 1, 2, 3, 4)
    run.append_event("start", step=0)
    listener = Listener()
    feed = Feed(run, listener)
    feed.tell()
    run.forget_after(2)
    run.append_event("start", step=2)
    taken = range(3, 3 + steps_before_the_next_look)
    take_steps(run, *taken)
    feed.tell()
    take_steps(run, 9)
    feed.tell()
    assert listener.heard == ["start", *taken, 9]
    assert [json.loads(line)["step"] for line in run.metrics.read_text().splitlines()] == [1, 2, *taken, 9]
