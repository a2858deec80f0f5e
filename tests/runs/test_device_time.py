import pytest

from rampcli.runs.device_time import time_until


def event(kind, time, **facts):
    return {"event": kind, "time": time, **facts}


START = [event("launch", 100.0), event("start", 110.0, step=0, world_size=2)]
KILLED = [
    *START,
    event("launch", 200.0),
    event("lost", 205.0, step=3, steps=2, lost_s=8.0, last_step_at=150.0),
    event("start", 208.0, step=3, world_size=4),
]


STOPPED = [
    *START,
    event("stop", 150.0, step=9, status="preempted", save_s=0.0),
    event("exit", 152.0),
    event("launch", 300.0),
    event("start", 310.0, step=9, world_size=2),
]


@pytest.mark.parametrize(
    ("events", "moment", "expected"),
    [
        (START, 130.0, (30.0, 60.0)),
        # A restart counts with the processes that it starts, and lost work with those that lost it.
        (KILLED, 228.0, (50.0 + 8.0 + 20.0, 50.0 * 2 + 8.0 * 4 + 20.0 * 4)),
        # The time between two commands does not count.
        (STOPPED, 330.0, (52.0 + 30.0, 2 * 82.0)),
    ],
)
def test_the_time_to_a_moment_counts_all_attempts_with_their_processes(events, moment, expected):
    assert time_until(events, moment) == pytest.approx(expected)


def test_later_events_do_not_change_the_time_to_a_moment():
    assert time_until(KILLED, 140.0) == time_until(START, 140.0)


def test_device_hours_are_unknown_if_a_start_does_not_say_its_processes():
    running_s, device_s = time_until([event("launch", 0.0), event("start", 1.0, step=0)], 3.0)
    assert (running_s, device_s) == (3.0, None)
