import itertools
import json
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.errors import RampcliError
from rampcli.files.locks import hold
from rampcli.launch import elastic
from rampcli.launch.observer import Observer
from rampcli.launch.supervise import LONGEST_BACKOFF_S, Restarts, Supervisor
from rampcli.launch.workers import Workers, start_process, worker_environment
from rampcli.machine.lifeline import StopSignals
from rampcli.runs.directory import RunDirectory
from rampcli.runs.rows import read_rows
from run_files import state
from standing import slow_clock

ACTOR = str(Path(__file__).with_name("actor.py"))
TESTS = Path(__file__).parents[1]
TIMEOUT = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, Timeout(ms)=600000)"


class Listener(Observer):
    """Records events, and requests a stop, once or twice, at the first event of a kind.

    Creates a file when actors listen.
    """

    def __init__(self, signals, stop_at, twice, listening):
        self.signals, self.stop_at, self.twice = signals, stop_at, twice
        self.listening = listening
        self.heard = []

    def on_event(self, row):
        assert row["time"] > 0  # each row is as in events.jsonl
        self.heard.append(row["event"])
        if row["event"] == "listening":
            self.listening.touch()
        if row["event"] == self.stop_at and self.signals.signal is None:
            self.signals.note(signal.SIGTERM)
            if self.twice:
                threading.Timer(0.7, self.signals.note, [signal.SIGTERM]).start()


@pytest.fixture
def play(tmp_path, monkeypatch, planned):
    """Supervises actors that play scenes in turn, and calls `meanwhile` after half a second.

    Lost nodes return when actors listen, and not before.

    A scene is played by one actor; a tuple of scenes by one actor each, who are ranks from 0 on.
    The last scene is repeated.

    Returns the final status or the error, and the listener.
    """
    run, listening = RunDirectory(tmp_path), tmp_path / "listening"
    monkeypatch.setattr(elastic, "time", slow_clock(listening))

    def start(_run, world, log):
        supervise.worlds.append(world.nodes)
        scene = supervise.scenes.pop(0) if len(supervise.scenes) > 1 else supervise.scenes[0]
        environment = worker_environment(threads=1) | {"PYTHONPATH": str(TESTS)}
        played = [scene] if isinstance(scene, list) else scene
        commands = [[sys.executable, ACTOR, str(tmp_path), json.dumps(one)] for one in played]
        return Workers([start_process(command, run, log, environment) for command in commands])

    def supervise(*scenes, words=(), backoff_s=0.0, stop_at=None, twice=False, meanwhile=None):
        supervise.scenes = list(scenes)
        run.write_state(state())
        overrides = [f"run_dir={tmp_path}", f"launch.backoff_s={backoff_s}", *words]
        resolved = planned("llama3_tiny", *overrides)
        signals = supervise.signals = StopSignals()
        listener = Listener(signals, stop_at, twice, listening)
        supervisor = Supervisor(
            resolved=resolved, run=run, start=start, observer=listener, signals=signals
        )
        if meanwhile:
            threading.Timer(0.5, meanwhile).start()
        try:
            return supervisor.run_stages(one_stage=False)["status"], listener
        except RampcliError as error:
            return error, listener

    supervise.run, supervise.worlds = run, []
    return supervise


def events(run, kind):
    return [row for row in read_rows(run.events) if row["event"] == kind]


COMPLETE = [["steps", 1, 9], ["status", "complete"]]


def test_workers_that_crash_are_restarted_until_the_run_is_complete(play):
    status, listener = play(
        [["steps", 1, 3], ["be killed"]],
        [["be killed"]],
        [["steps", 1, 1], ["print and fail", "a word"]],
        COMPLETE,
    )
    assert status == "complete"
    assert listener.heard.count("fault") == 3
    faults = [row["reason"] for row in events(play.run, "fault")]
    log = play.run.logs / "stage_0.log"
    assert faults[0] == (
        f"the workers crashed (rank 0 was killed by SIGKILL; log: {log});"
        " restarting from the beginning: restart 1 of at most 3"
    )
    assert f"(exit code 1; log: {log}, which ends: a word); restarting" in faults[2]
    assert [row["exit_code"] for row in events(play.run, "exit")] == [-9, -9, 1, 0]
    assert len(events(play.run, "launch")) == 4


def test_more_crashes_than_restarts_end_the_run(play):
    error, _ = play(
        [["steps", 1, 3], ["be killed"]],
        [["be killed"]],
        [["steps", 1, 4], ["be killed"]],
        words=["launch.max_restarts=2"],
    )
    assert (
        "workers crashed 3 times, with launch.max_restarts=2 (rank 0 was killed by SIGKILL; log: "
        in error.message
    )
    assert (error.exit_code, len(events(play.run, "launch"))) == (1, 3)
    assert (play.run.read_state()["status"], play.run.read_state()["error"]["message"]) == (
        "failed",
        error.message,
    )


def test_two_consecutive_crashes_at_the_same_step_end_the_run(play):
    error, _ = play(
        [["steps", 1, 3], ["be killed"]],
        [["steps", 2, 3], ["fail", "RuntimeError: an address", False]],
        COMPLETE,
    )
    assert (
        "workers crashed at step 4 on two consecutive starts (RuntimeError: an address"
        in error.message
    )
    assert play.run.read_state()["error"]["message"] == error.message
    assert len(events(play.run, "launch")) == 2


def test_an_error_that_the_user_has_to_fix_ends_the_run_at_once(play):
    error, _ = play([["steps", 1, 3], ["fail", "the disk is full", True]])
    assert error.message.startswith("the workers failed: the disk is full (log: ")
    assert (error.exit_code, len(events(play.run, "launch"))) == (4, 1)


@pytest.mark.parametrize("status", ["complete", "preempted"])
def test_state_json_decides_and_not_the_exit_code(play, status):
    assert play([["steps", 1, 3], ["status", status], ["be killed"]])[0] == status


@pytest.mark.parametrize("scene", [[["steps", 1, 3], ["save when asked"]], [["wait"]]])
def test_workers_that_are_asked_to_stop_save_what_there_is_and_the_run_is_preempted(play, scene):
    assert play(scene, stop_at="listening")[0] == "preempted"
    assert play.run.read_state()["status"] == "preempted"


def test_workers_that_do_not_save_in_time_are_killed_and_reported(play, monkeypatch):
    began, kills = time.monotonic(), itertools.count()
    # Memory runs out for another program on this host.
    monkeypatch.setattr("rampcli.launch.supervise.count_oom_kills", lambda: next(kills))
    error, _ = play(
        [["steps", 1, 3], ["ignore signals"]], words=["launch.grace_s=0.5"], stop_at="listening"
    )
    assert "the workers did not save within launch.grace_s=0.5 s" in error.message
    assert error.exit_code == 1
    assert time.monotonic() - began < 300


def test_a_second_signal_ends_the_run_at_once(play):
    began = time.monotonic()
    scene = [["steps", 1, 3], ["ignore signals"]]
    error, _ = play(scene, words=["launch.grace_s=600"], stop_at="listening", twice=True)
    assert (
        "the workers were killed at the second signal; the same command resumes from"
        in error.message
    )
    assert error.exit_code == 1
    assert time.monotonic() - began < 300


def test_a_start_that_fails_before_the_first_step_is_tried_twice_and_its_log_is_quoted(
    play,
):
    error, _ = play([["print and fail", "the first line\nno module\x1b[2J of that name\n\n"]])
    log = play.run.logs / "stage_0.log"
    assert error.message.startswith(
        "giving up: workers crashed before the first step on two consecutive starts"
    )
    assert error.message.endswith(r", which ends: no module\x1b[2J of that name)")
    assert str(log) in events(play.run, "fault")[0]["reason"]
    assert len(events(play.run, "launch")) == 2


def test_the_output_of_an_earlier_start_is_not_quoted(play):
    error, _ = play(
        [["steps", 1, 3], ["print and fail", "a word"]],
        [["be killed"]],
        words=["launch.max_restarts=1"],
    )
    assert "a word" in events(play.run, "fault")[0]["reason"]
    assert "a word" not in error.message


ELASTIC = [
    "launch.elastic=true",
    "trainer.num_nodes=3",
    "trainer.devices=1",
    "data.micro_batch_size=1",
    "model.global_batch_size=6",
]
ELASTIC += ["model.rampup_batch_size=null", "trainer.accelerator=cpu"]


def test_lost_nodes_count_as_crashes_and_the_others_continue_at_once(play):
    error, _ = play([["be killed"]], words=[*ELASTIC, "launch.max_restarts=2"], backoff_s=30)
    assert (
        "workers crashed 3 times, with launch.max_restarts=2 (rank 0 was killed by SIGKILL; log: "
        in error.message
    )
    assert play.worlds == [(0, 1, 2), (1, 2), (2,)]
    assert [row["world_size"] for row in events(play.run, "launch")] == [3, 2, 1]
    assert events(play.run, "fault")[1]["reason"].startswith(
        "lost node 1 (killed by SIGKILL); the remaining node continues; restarting it in 60 s:"
        " restart 2 of at most 2 (log: "
    )
    assert play.run.read_state()["status"] == "failed"


@pytest.mark.parametrize(
    ("scenes", "cause"),
    [
        (
            ([["steps", 1, 3], ["abort", TIMEOUT]], [["abort", TIMEOUT]], [["wait"]]),
            "ranks waited 600 s for others, as launch.step_timeout_s allows",
        ),
        (([["fail", "boom", False]], [["wait"]], [["wait"]]), "boom"),
        (([["abort", "free(): bad"]], [["wait"]], [["wait"]]), "rank 0 was killed by SIGABRT"),
    ],
    ids=["a hang", "a failure", "an abort"],
)
def test_a_node_whose_rank_aborts_itself_is_not_lost(play, scenes, cause):
    status, _ = play(scenes, COMPLETE, words=ELASTIC)
    assert (status, play.worlds) == ("complete", [(0, 1, 2)] * 2)
    (fault,) = events(play.run, "fault")
    assert fault["reason"].startswith(f"the workers crashed ({cause}; log: ")


@pytest.mark.parametrize(
    "meanwhile",
    [[["steps", 1, 3], ["save when asked"]], [["steps", 1, 3], ["ignore signals"]], [["wait"]]],
)
def test_a_restarted_node_joins_once_the_others_have_saved_or_failed_to(play, meanwhile):
    status, listener = play(
        [["be killed"]], meanwhile, COMPLETE, words=[*ELASTIC, "launch.grace_s=0.5"], backoff_s=60
    )
    assert (status, play.worlds) == ("complete", [(0, 1, 2), (1, 2), (0, 1, 2)])
    assert listener.heard.count("fault") == 1


def test_a_run_that_is_stopped_while_it_waits_for_nodes_or_for_a_save_is_preempted(play):
    words = [*ELASTIC, "launch.min_nodes=3"]
    assert play([["be killed"]], words=words, backoff_s=60, stop_at="fault")[0] == "preempted"
    assert events(play.run, "fault")[0]["reason"].startswith(
        "lost node 0 (killed by SIGKILL); the remaining 2 nodes wait (launch.min_nodes=3);"
        " restarting it in 60 s"
    )
    assert (
        play(
            [["be killed"]],
            [["steps", 1, 3], ["save when asked"]],
            words=ELASTIC,
            backoff_s=60,
            stop_at="listening",
        )[0]
        == "preempted"
    )
    assert play.worlds == [(0, 1, 2), (0, 1, 2), (1, 2)]


@pytest.mark.parametrize("words", [[], ELASTIC], ids=["fixed", "elastic"])
def test_workers_that_save_without_being_asked_end_the_run(play, words):
    saved = [["steps", 1, 3], ["status", "preempted"], ["be killed"]]
    assert play(saved, COMPLETE, words=words)[0] == "preempted"


def test_workers_that_save_because_a_rank_was_killed_are_restarted(play):
    killed = [["be killed beside one that listens"]]
    status, listener = play(([["steps", 1, 3], ["save when asked"]], killed), COMPLETE)
    assert (status, listener.heard.count("fault")) == ("complete", 1)
    assert "rank 1 was killed by SIGKILL" in events(play.run, "fault")[0]["reason"]


def test_a_supervisor_that_waits_for_workers_or_a_restart_can_be_stopped(play):
    signals_at = {"fault": [[["steps", 1, 3], ["be killed"]]], "launch": [[["be killed"]]]}
    for event, scenes in signals_at.items():
        began = time.monotonic()
        status, _ = play(*scenes, backoff_s=600, stop_at=event)
        assert status == "preempted"
        assert time.monotonic() - began < 50  # the back-off is a minute
    with hold(play.run.workers_lock, shared=True):
        launches = len(events(play.run, "launch"))
        assert play(COMPLETE, meanwhile=lambda: play.signals.note(signal.SIGTERM))[0] == "preempted"
        assert len(events(play.run, "launch")) == launches


def test_a_run_that_orphaned_workers_have_completed_is_not_restarted(play):
    lock = hold(play.run.workers_lock, shared=True)

    def complete():
        play.run.change_status("complete")
        lock.close()

    assert play([["be killed"]], meanwhile=complete)[0] == "complete"
    assert events(play.run, "launch") == []


@pytest.mark.parametrize(
    ("waited_ms", "limit"),
    [
        (1800000, "launch.start_timeout_s"),
        (4000, "launch.step_timeout_s"),
        (43200000, None),
    ],
)
def test_ranks_that_waited_too_long_name_the_limit_that_applied(play, waited_ms, limit):
    scene = [["print and fail", f"Timed out waiting {waited_ms}ms for recv\n"]]
    error, _ = play(scene, words=["launch.step_timeout_s=4", "launch.max_restarts=0"])
    allowed, larger = (f", as {limit} allows", f", or a larger {limit}") if limit else ("", "")
    assert f"(ranks waited {waited_ms / 1000:g} s for others{allowed}; log: " in error.message
    assert error.remedy.startswith(f"find out why a rank was late{larger}; ")


def test_no_workers_are_started_beside_orphaned_ones(play, monkeypatch):
    monkeypatch.setattr("rampcli.launch.supervise.ORPHANS_EXIT_S", 0.1)
    with hold(play.run.workers_lock, shared=True):
        error, _ = play(COMPLETE)
    assert "other workers are still training in" in error.message
    assert events(play.run, "launch") == []


@given(max_restarts=st.integers(0, 20), backoff_s=st.floats(0, 100))
def test_crashes_are_followed_by_max_restarts_restarts_with_doubling_waits(max_restarts, backoff_s):
    restarts = Restarts(max_restarts=max_restarts, backoff_s=backoff_s)
    waits = [restarts.after(step, has_lost_node=False) for step in range(max_restarts)]
    assert waits == [
        min(LONGEST_BACKOFF_S, backoff_s * 2**number) for number in range(max_restarts)
    ]
    why = restarts.after(max_restarts, has_lost_node=False)
    assert f"launch.max_restarts={max_restarts}" in why


LOST = -1
"""In place of the steps taken: a node was lost."""


@pytest.mark.parametrize(
    ("crashes", "reason"),
    [
        ((4, 5, 4, 4), "workers crashed at step 5 on two consecutive starts"),
        ((None, 4, None, None), "workers crashed before the first step on two consecutive starts"),
        ((None, 4, None, 7), "workers crashed 4 times, with launch.max_restarts=3"),
        ((4, LOST, 4, LOST), "workers crashed 4 times, with launch.max_restarts=3"),
        ((4, LOST, LOST, 4), "workers crashed 4 times, with launch.max_restarts=3"),
    ],
)
def test_two_consecutive_crashes_at_the_same_step_end_the_restarts(crashes, reason):
    """A crash before training differs from one at a step, and a lost node is a crash at no step."""
    restarts = Restarts(max_restarts=3, backoff_s=1.0)
    found = [restarts.after(step, has_lost_node=step == LOST) for step in crashes]
    assert found == [1.0, 2.0, 4.0, reason]
