import json

import pytest

from rampcli.launch.observer import Feed, Observer, Observers
from rampcli.runs.directory import RunDirectory
from run_files import metrics_row


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
        run.append_row(run.metrics, metrics_row(step=step))


@pytest.mark.parametrize("steps_before_the_next_poll", range(6))
def test_repeated_steps_are_reported_even_if_the_feed_is_polled_late(
    run, steps_before_the_next_poll
):
    take_steps(run, 1, 2, 3, 4)
    run.append_event("start", step=0)
    listener = Listener()
    feed = Feed(run, listener)
    feed.poll()
    run.drop_rows_after(2)
    run.append_event("start", step=2)
    taken = range(3, 3 + steps_before_the_next_poll)
    take_steps(run, *taken)
    feed.poll()
    take_steps(run, 9)
    feed.poll()
    assert listener.heard == ["lost", "start", *taken, 9]
    assert [json.loads(line)["step"] for line in run.metrics.read_text().splitlines()] == [
        1,
        2,
        *taken,
        9,
    ]


def test_an_observer_that_fails_asks_to_stop_and_the_others_hear_everything():
    class Failing(Listener):
        def on_row(self, row):
            raise LookupError(row["step"])

    failing, listener, stops = Failing(), Listener(), []
    observers = Observers([failing, listener], stop=lambda: stops.append(1))
    for step in (1, 2):
        observers.on_event({"event": "stage"})
        observers.on_row({"step": step})
    assert failing.heard == ["stage"]
    assert listener.heard == ["stage", 1, "stage", 2]
    assert (len(stops), str(observers.error)) == (1, "1")
