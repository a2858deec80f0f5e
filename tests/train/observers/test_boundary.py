import pytest

from rampcli.runs.directory import RunDirectory
from rampcli.train.observers.boundary import BoundaryCosts

PARTS = ("save_s", "exit_s", "wait_s", "start_s", "import_s", "load_s", "first_step_s")


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path)


def costs_of(run, *, step):
    costs = BoundaryCosts(run=run, started=112.0, imported=116.0, loaded=124.0)
    return costs.costs(step, first_step_at=156.0)


def leave_events(run, *events):
    for time, event, facts in events:
        run.append_row(run.events, {"event": event, "time": time, **facts})


STOP = (100.5, "stop", {"step": 7, "status": "stage_boundary", "save_s": 0.5})


def test_the_parts_of_a_boundary_add_up_to_the_time_between_two_steps(run):
    leave_events(run, (90.0, "launch", {}), STOP, (101.5, "exit", {}), (110.0, "launch", {}))
    costs = costs_of(run, step=7)
    parts = (0.5, 1.0, 8.5, 2.0, 4.0, 8.0, 32.0)
    assert costs == {"lost_s": 56.0, **dict(zip(PARTS, parts, strict=True))}
    assert sum(costs[part] for part in PARTS) == costs["lost_s"]


def test_parts_without_a_recorded_time_are_none(run):
    leave_events(run, (90.0, "launch", {}), (95.0, "exit", {}), STOP)
    costs = costs_of(run, step=7)
    assert [part for part in PARTS if costs[part] is None] == ["exit_s", "wait_s", "start_s"]
    assert costs["lost_s"] == 56.0


def test_a_failed_start_counts_as_waiting(run):
    lost = ((110.0, "launch", {}), (111.0, "exit", {}))
    leave_events(
        run, STOP, (101.5, "exit", {}), (102.0, "launch", {}), (109.0, "exit", {}), *lost[:1]
    )
    assert costs_of(run, step=7)["wait_s"] == 8.5


@pytest.mark.parametrize(
    "last",
    [(100.0, "stop", {"step": 7, "status": "preempted", "save_s": 1.0}), (100.5, "launch", {})],
)
def test_only_a_start_after_a_boundary_has_costs(run, last):
    leave_events(run, last)
    assert costs_of(run, step=7) is None


def test_a_run_that_resumes_before_the_boundary_has_no_costs(run):
    leave_events(run, STOP)
    assert costs_of(run, step=5) is None
