import json
import os
from functools import partial
from pathlib import Path

import pytest

from plans import fleet_of, plan
from rampcli.errors import DamagedFileError
from rampcli.files.locks import hold
from rampcli.launch.protocol import launchers
from rampcli.launch.status import Queues, read_status
from rampcli.report.page_data import quiet
from rampcli.runs.directory import RunDirectory
from rampcli.runs.facts import RunFacts
from rampcli.runs.followed_run import FollowedRun
from rampcli.runs.heartbeats import heartbeat_file
from rampcli.runs.rows import MOST_SEARCHED_BYTES
from rampcli.runs.standstill import find_standstill
from run_files import coming, failure, metrics_row, state, submit, write_squeue


@pytest.fixture
def run(tmp_path):
    """A run of four stages that has taken 24 steps of the second one, at 8 samples per second."""
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    run.config.write_text("name: run\n")
    planned = plan([4, 4, 300], 16, fleet=fleet_of(2, 1), max_samples=600)
    run.write_json(run.path / "plan.json", planned.to_json())
    run.write_state(state(step=25, consumed_samples=100, stage=1, next=coming()))
    for facts in ({"num_nodes": 1, "time": 50.0}, {"num_nodes": 2, "time": 100.0}):
        event(run, "launch", stage=1, world_size=1, **facts)
    event(run, "start", time=104.0, step=25, consumed_samples=100, device="cpu")
    for step in range(26, 38):
        run.append_row(run.metrics, row(step))
    return run


@pytest.fixture
def squeue(run, tmp_path, monkeypatch):
    """Submits a job of the run, and sets the state that squeue lists for it."""
    submit(run)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return partial(write_squeue, tmp_path, run)


def row(step: int, **facts) -> dict:
    slow = {"samples_per_s": 0.1, "tokens_per_s": 1.0} if step < 28 else {}
    usual = {"step": step, "stage": 1, "global_batch_size": 8, "mfu": 0.4, "time": 4.0 * step}
    return metrics_row(**usual, consumed_samples=100 + 8 * (step - 25), **slow | facts)


def event(run: RunDirectory, kind: str, *, time: float = 200.0, **facts) -> None:
    run.append_row(run.events, {"event": kind, "time": time, **facts})


def test_a_status_has_the_facts_of_the_last_steps_of_the_plan_and_of_the_newest_events(run):
    for loss, corpus in ((3.0, "wiki"), (2.0, "code"), (2.5, "wiki")):
        facts = {"step": 30, "consumed_samples": 140, "loss": loss}
        of_average = {"ema_loss": loss - 1} if loss < 3 else {}
        event(run, "validation", **facts, **of_average, corpus=corpus)
    event(run, "slow_data", reason="old")
    event(run, "fault", reason="new")
    shown = {
        **{"step": 37, "consumed_samples": 196, "end_sample": 604, "stage": 1, "stages": 4},
        **{"global_batch_size": 8, "num_nodes": 2, "loss": 2.5, "mfu": 0.4, "step_at": 148.0},
        **{"tokens_per_s": 1024.0, "warnings": 2, "warning": "new", "validation_loss": 2.5},
        "validation_losses": {"wiki": 2.5, "code": 2.0},
        "ema_validation_losses": {"wiki": 1.5, "code": 1.0},
        "merge_validation_losses": {},
    }
    assert read_status(run).to_json().items() >= shown.items()


def test_the_time_left_counts_settled_steps_later_stages_and_boundaries(run):
    status = read_status(run)
    assert status.stage_left_s == pytest.approx((204 - 196) / 8)
    # Starting took 4 s, and nothing else is known about a boundary.
    assert status.run_left_s == pytest.approx((604 - 196) / 8 + 2 * 4)
    event(run, "boundary", lost_s=9.0)
    assert read_status(run).run_left_s == pytest.approx((604 - 196) / 8 + 2 * 9)


def test_the_time_left_is_unknown_while_there_are_only_first_steps(run):
    run.drop_rows_after(27)
    status = read_status(run)
    assert (status.stage_left_s, status.run_left_s) == (None, None)
    assert status.facts.tokens_per_s == 1.0


@pytest.mark.parametrize(
    ("facts", "shown"),
    [
        ({"status": "running"}, "crashed"),
        ({"status": "preempted"}, "interrupted"),
        ({"status": "stage_boundary"}, "stage boundary"),
        ({"status": "complete"}, "complete"),
        ({"status": "failed", "error": failure()}, "failed"),
    ],
)
def test_the_state_of_a_run_that_nothing_trains_is_that_of_its_end(run, facts, shown):
    run.write_state(state(next=coming(), **facts))
    assert read_status(run).state == shown


def test_a_run_that_holds_its_lock_trains_or_starts(run):
    with hold(run.lock):
        assert read_status(run).state == "training"
        event(run, "launch", num_nodes=1)
        assert read_status(run).state == "starting"
    with hold(run.workers_lock, shared=True):
        assert read_status(run).state == "starting"
    assert read_status(run).state == "crashed"


def test_a_run_that_trains_and_takes_no_steps_says_for_how_long(run):
    facts = read_status(run).facts
    assert facts.step_s == 0.5
    newest = 148.0  # the end of the last step; all events are older
    for quiet_s, is_still in ((30.0, False), (60.0, False), (95.0, True), (-5.0, False)):
        found = find_standstill(run, facts, now=newest + quiet_s)
        assert (found is not None) == is_still
    assert (found_at(run, facts, newest + 95.0)) == (95.0, 0.5)
    facts.rows = [{**each, "step_time_s": 10.0} for each in facts.rows]
    assert find_standstill(run, facts, now=newest + 95.0) is None
    assert read_status(run).standstill is None  # nothing trains it
    with hold(run.lock):
        assert read_status(run).to_json()["quiet_s"] > 1e8


def test_a_run_whose_processes_are_starting_does_not_stand_still(run):
    page = FollowedRun("run", run)
    with hold(run.lock):
        page.read()
        assert quiet(page) is not None
        event(run, "launch", num_nodes=1)
        page.read()
        assert quiet(page) is read_status(run).standstill is None


def found_at(run: RunDirectory, facts: RunFacts, now: float) -> tuple[float, float | None]:
    found = find_standstill(run, facts, now=now)
    assert found is not None
    return found.quiet_s, found.step_s


def test_before_the_first_step_a_run_stands_still_a_minute_after_its_last_event(run):
    run.metrics.unlink()
    facts = read_status(run).facts
    assert found_at(run, facts, 104.0 + 61.0) == (61.0, None)
    assert find_standstill(run, facts, now=104.0 + 60.0) is None
    assert find_standstill(run, RunFacts(), now=104.0) is None


def write_heartbeats(run: RunDirectory, *ranks: dict) -> None:
    run.make_folder(run.heartbeats)
    for rank, facts in enumerate(ranks):
        record = {"rank": rank, "world_size": len(ranks), "host": "node", "pid": 1, "waits": False}
        path = heartbeat_file(run, rank)
        run.write_json(path, record | {"doing": "validating", "doing_s": 95.0} | facts)
        os.utime(path, (95.0, 95.0))
    for path in (run.state, run.metrics, run.events):
        os.utime(path, (0.0, 0.0))


def test_a_silent_rank_makes_a_standstill_of_less_than_twenty_steps(run):
    facts = read_status(run).facts
    facts.rows = [{**each, "step_time_s": 10.0} for each in facts.rows]
    write_heartbeats(run, {}, {})
    assert find_standstill(run, facts, now=148.0 + 95.0) is None
    os.utime(heartbeat_file(run, 1), (0.0, 0.0))
    found = find_standstill(run, facts, now=148.0 + 95.0)
    assert found is not None
    assert found.to_json()["behind"] == [1]


def test_a_standstill_does_not_depend_on_the_clock_of_the_reader(run):
    facts = read_status(run).facts
    write_heartbeats(run, {}, {})
    run.lock.touch()
    os.utime(run.lock, (90.0, 90.0))
    for now in (148.0 - 1e6, 148.0, 148.0 + 1e6):
        assert found_at(run, facts, now) == (95.0, 0.5)
    os.utime(run.metrics, (40.0, 40.0))
    for now in (148.0 - 1e6, 148.0, 148.0 + 1e6):
        assert find_standstill(run, facts, now=now) is None


def test_a_run_whose_processes_are_starting_stands_still_if_one_is_behind(run):
    event(run, "launch", num_nodes=1)
    facts = read_status(run).facts
    write_heartbeats(run, {"doing": "loading"}, {"doing": "loading"})
    assert find_standstill(run, facts, now=200.0 + 95.0) is None
    write_heartbeats(run, {"doing": "loading"}, {"waits": True})
    assert find_standstill(run, facts, now=200.0 + 95.0) is not None
    with hold(run.lock):
        status = read_status(run)
    assert status.state == "starting"
    assert status.standstill is not None


@pytest.mark.parametrize(("understood", "shown"), [(True, "failed"), (False, "training")])
def test_a_run_that_has_failed_for_good_may_still_wait_for_its_trackers(run, understood, shown):
    run.write_state(state(status="failed", error=failure(understood=understood)))
    with hold(run.lock):
        assert read_status(run).state == shown


def test_a_run_before_its_first_step_has_no_figures_and_one_without_files_neither(run, tmp_path):
    run.metrics.unlink()
    run.events.unlink()
    status = read_status(run)
    assert (status.facts.last, status.facts.tokens_per_s, status.stage_left_s) == ({}, None, None)
    assert (status.facts.global_batch_size, status.facts.num_nodes) == (8, 2)
    assert read_status(RunDirectory(tmp_path)).state == "not started"


def bytes_read():
    """The bytes that this process has read so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_a_run_with_many_rows_and_events_is_read_at_once(run):
    line = (json.dumps(row(40)) + "\n") * 200_000
    with run.metrics.open("a") as file:
        file.write(line)
    facts = {"event": "validation", "time": 1.0, "step": 1, "consumed_samples": 1, "loss": 3.0}
    with run.events.open("a") as file:
        file.write((json.dumps(facts) + "\n") * 200_000)
    before = bytes_read()
    assert read_status(run).facts.validation_loss == 3.0
    assert bytes_read() - before < MOST_SEARCHED_BYTES + 2**20


@pytest.mark.parametrize("file", ["state.json", "metrics.jsonl", "events.jsonl", "plan.json"])
def test_a_damaged_file_is_named(run, file):
    (run.path / file).write_text('{"event": "launch"}\n')
    with pytest.raises(DamagedFileError, match=file):
        read_status(run)


def test_a_queue_is_asked_seldom_and_not_again_once_it_has_failed(run, tmp_path, programs):
    asked = tmp_path / "asked"
    programs(squeue=f"echo >>{asked}; test $(wc -l <{asked}) = 1")
    others = [RunDirectory(tmp_path / name) for name in ("one", "two")]
    for each in (run, *others):
        each.path.mkdir(exist_ok=True)
        submit(each)
    remembered = Queues()
    for _ in range(3):
        (job,), unknown = remembered.jobs(run, False)
        assert (job.state, unknown) == (None, None)
        assert all("squeue" in remembered.jobs(each, False)[1] for each in others)
    assert len(asked.read_text().splitlines()) == 2


@pytest.mark.parametrize("method", ["has_jobs", "jobs"])
def test_a_launcher_that_fails_leaves_the_jobs_unknown_and_nothing_else(run, method, monkeypatch):
    def fail(*_):
        raise ValueError("no shelf")

    submit(run)
    monkeypatch.setattr(launchers()["slurm"], method, fail)
    status = read_status(run)
    assert status.jobs_unknown == "launcher slurm: no shelf"
    assert (status.state, status.facts.step) == ("unknown", 37)


def test_a_queue_is_asked_again_once_a_run_starts_or_ends(run, squeue):
    squeue("PENDING")
    remembered = Queues()
    assert read_status(run, remembered).state == "waiting"
    squeue("RUNNING")
    with hold(run.lock):
        assert read_status(run, remembered).jobs[0].state == "RUNNING"
        squeue("COMPLETING")
        assert read_status(run, remembered).jobs[0].state == "RUNNING"
    with hold(run.workers_lock, shared=True):  # its supervisor is gone
        assert read_status(run, remembered).jobs[0].state == "COMPLETING"
        squeue("COMPLETED")
    assert read_status(run, remembered).jobs[0].state == "COMPLETED"


@pytest.mark.parametrize(
    ("status", "reported", "shown"),
    [
        ("not started", "PENDING", "waiting"),
        ("not started", "RUNNING", "starting"),
        ("stage_boundary", "RUNNING", "stage boundary"),
        ("stage_boundary", "COMPLETING", "stage boundary"),
        ("stage_boundary", "PENDING", "waiting"),
        ("running", "RUNNING", "training"),
        ("running", "PENDING", "waiting"),
        ("running", "COMPLETED", "crashed"),
        ("preempted", "RUNNING", "interrupted"),
        ("preempted", "PENDING", "waiting"),
        ("failed", "RUNNING", "failed"),
        ("failed", "COMPLETING", "failed"),
        ("complete", "RUNNING", "complete"),
        ("complete", "PENDING", "complete"),
    ],
)
def test_a_run_whose_locks_are_free_does_what_its_job_does(run, squeue, status, reported, shown):
    squeue(reported)
    error = {"error": failure()} if status == "failed" else {}
    run.write_state(state(status=status, **error))
    assert read_status(run).state == shown
