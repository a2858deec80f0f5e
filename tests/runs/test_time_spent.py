import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.runs.directory import COMPLETE, PREEMPTED, STAGE_BOUNDARY
from rampcli.runs.event_kinds import TimePart
from rampcli.runs.time_spent import RunClock, time_until


def at(time, event, **facts):
    return {"event": event, "time": float(time), **facts}


def time_spent(events, *, last_step_at=None, now=None):
    clock = RunClock()
    for event in events:
        clock.add(event)
    return clock.spent(last_step_at=last_step_at, now=now)


def parts(events, **more):
    spent = time_spent(events, **more)
    return {part: round(seconds, 3) for part, seconds in spent.parts.items() if seconds}


STAGE = [
    at(0, "launch"),
    at(8, "start"),
    at(9, "compile", compile_s=1.0),
    at(11, "validation", validation_s=2.0),
    at(30, "checkpoint", stall_s=1.5),
]
STOP = [
    at(40, "checkpoint", stall_s=2.0),
    at(40, "stop", save_s=2.0, status=STAGE_BOUNDARY),
    at(41, "exit", exit_code=0),
]


def test_a_run_through_a_boundary_is_attributed_in_full():
    events = [
        *STAGE,
        *STOP,
        at(41, "launch"),
        at(46, "start"),
        at(60, "stop", save_s=1.0, status=COMPLETE),
        at(61, "exit", exit_code=0),
    ]
    assert parts(events) == {
        TimePart.START: 9,
        TimePart.COMPILATION: 1,
        TimePart.VALIDATION: 2,
        TimePart.CHECKPOINTS: 4.5,
        TimePart.TRAINING: 38.5,
        TimePart.BOUNDARIES: 6,
    }
    spent = time_spent(events)
    assert (spent.elapsed_s, spent.running_s) == (61, 61)
    assert spent.goodput == 38.5 / 61


def test_a_last_save_that_no_checkpoint_event_reports_counts_as_checkpoint():
    events = [at(0, "start"), at(10, "stop", save_s=3.0, status=COMPLETE)]
    assert parts(events) == {TimePart.TRAINING: 7, TimePart.CHECKPOINTS: 3}


def test_a_pause_of_the_user_is_not_running_time():
    events = [
        *STAGE,
        *STOP,
        at(1041, "launch"),
        at(1046, "start"),
    ]
    spent = time_spent(events, now=1056.0)
    assert (spent.parts[TimePart.STOPPED], spent.running_s) == (1000, 56)


def test_a_crash_costs_its_steps_the_interrupted_one_and_the_restart():
    events = [
        *STAGE,
        at(50, "exit", exit_code=1),
        at(50, "fault", reason="x"),
        at(52, "launch"),
        at(57, "lost", lost_s=15.0, last_step_at=48.0),
        at(58, "start"),
    ]
    assert parts(events, now=60) == {
        TimePart.START: 8,
        TimePart.COMPILATION: 1,
        TimePart.VALIDATION: 2,
        TimePart.CHECKPOINTS: 1.5,
        TimePart.TRAINING: 42 - 4.5 - 17 + 2,
        TimePart.LOST: 17,
        TimePart.RESTARTS: 8,
    }


@pytest.mark.parametrize("by_hand", [False, True])
def test_after_everything_was_killed_the_run_counts_as_stopped_from_its_last_step_on(by_hand):
    events = [
        *STAGE,
        *([] if by_hand else [at(500, "launch")]),
        at(505, "lost", lost_s=15.0, last_step_at=48.0),
        at(506, "start"),
    ]
    spent = parts(events, now=510)
    assert spent[TimePart.LOST] == 15
    assert spent[TimePart.STOPPED] == (458 if by_hand else 452)
    assert spent.get(TimePart.RESTARTS, 0) == (0 if by_hand else 6)


def test_a_crash_before_the_first_step_is_followed_by_a_restart():
    events = [
        at(0, "launch"),
        at(3, "exit", exit_code=1),
        at(3, "fault", reason="x"),
        at(4, "launch"),
        at(9, "start"),
    ]
    assert parts(events, now=10) == {TimePart.START: 8, TimePart.RESTARTS: 1, TimePart.TRAINING: 1}


def test_a_run_that_died_has_trained_until_its_last_step():
    assert parts(STAGE, last_step_at=45.0)[TimePart.TRAINING] == 37 - 4.5
    assert parts(STAGE)[TimePart.TRAINING] == 22 - 4.5


FAILED = [at(0, "launch"), at(5, "start", step=0), at(15, "exit", exit_code=1)]


def test_a_step_that_failed_is_lost_work():
    assert parts(FAILED, last_step_at=0.0) == {TimePart.START: 5, TimePart.LOST: 10}
    assert parts(FAILED, last_step_at=12.0) == {
        TimePart.START: 5,
        TimePart.TRAINING: 7,
        TimePart.LOST: 3,
    }
    assert parts(FAILED) == {TimePart.START: 5, TimePart.TRAINING: 10}


def test_processes_that_died_before_their_first_step_have_lost_their_time():
    again = [at(15, "fault", reason="x"), at(16, "launch"), at(20, "start", step=0)]
    assert parts([*FAILED, *again], now=30.0) == {
        TimePart.START: 5,
        TimePart.LOST: 10,
        TimePart.RESTARTS: 5,
        TimePart.TRAINING: 10,
    }
    later = [*again[:2], at(20, "start", step=3)]
    assert parts([*FAILED, *later], now=30.0) == {
        TimePart.START: 5,
        TimePart.RESTARTS: 5,
        TimePart.TRAINING: 20,
    }


def test_time_after_the_end_does_not_count():
    events = [*STAGE, at(40, "stop", save_s=2.0, status=PREEMPTED), at(41, "exit")]
    assert time_spent(events, last_step_at=39.0).elapsed_s == 41


def test_a_run_without_events_has_spent_no_time():
    spent = time_spent([])
    assert (spent.elapsed_s, spent.goodput) == (0, None)


KINDS = {
    "launch": {},
    "start": {},
    "stage": {},
    "compile": {"compile_s": 3.0},
    "validation": {"validation_s": 2.0},
    "checkpoint": {"stall_s": 1.0},
    "stop": {"save_s": 4.0, "status": STAGE_BOUNDARY},
    "exit": {"exit_code": 0},
    "fault": {"reason": "x"},
    "lost": {"lost_s": 5.0, "last_step_at": 7.0},
}


@given(
    st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.floats(0, 100)), max_size=20),
    st.none() | st.floats(0, 4000),
)
def test_parts_add_up_to_the_time_from_the_first_event_in_any_order_of_events(steps, now):
    times = [sum(each for _, each in steps[: number + 1]) for number in range(len(steps))]
    events = [at(time, kind, **KINDS[kind]) for time, (kind, _) in zip(times, steps, strict=True)]
    spent = time_spent(events, now=now)
    assert min(spent.parts.values()) >= 0
    last = max([*times[-1:], *([] if now is None or not times else [now])], default=0.0)
    if events:
        assert math.isclose(spent.elapsed_s, last - times[0], rel_tol=1e-9, abs_tol=1e-6)


STARTED_EVENTS = [at(100.0, "launch"), at(110.0, "start", step=0, world_size=2)]
KILLED = [
    *STARTED_EVENTS,
    at(200.0, "launch"),
    at(205.0, "lost", step=3, steps=2, lost_s=8.0, last_step_at=150.0),
    at(208.0, "start", step=3, world_size=4),
]


PREEMPTED_EVENTS = [
    *STARTED_EVENTS,
    at(150.0, "stop", step=9, status="preempted", save_s=0.0),
    at(152.0, "exit"),
    at(300.0, "launch"),
    at(310.0, "start", step=9, world_size=2),
]


@pytest.mark.parametrize(
    ("events", "moment", "expected"),
    [
        (STARTED_EVENTS, 130.0, (30.0, 60.0)),
        # A restart counts with the processes that it starts, and lost work with those that lost it.
        (KILLED, 228.0, (50.0 + 8.0 + 20.0, 50.0 * 2 + 8.0 * 4 + 20.0 * 4)),
        # The time between two commands does not count.
        (PREEMPTED_EVENTS, 330.0, (52.0 + 30.0, 2 * 82.0)),
    ],
)
def test_the_time_to_a_moment_counts_all_attempts_with_their_processes(events, moment, expected):
    assert time_until(events, moment) == pytest.approx(expected)


def test_later_events_do_not_change_the_time_to_a_moment():
    assert time_until(KILLED, 140.0) == time_until(STARTED_EVENTS, 140.0)


def test_device_hours_are_unknown_if_a_start_does_not_say_its_processes():
    running_s, device_s = time_until([at(0.0, "launch"), at(1.0, "start", step=0)], 3.0)
    assert (running_s, device_s) == (3.0, None)
