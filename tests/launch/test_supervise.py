import json
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from rampcli import llm
from rampcli.config.compose import lay_over
from rampcli.config.resolve import resolve
from rampcli.errors import RampcliError
from rampcli.launch.observer import Observer
from rampcli.launch.supervise import Supervisor
from rampcli.launch.workers import Workers, start_process, worker_environment
from rampcli.lifeline import StopSignals
from rampcli.locks import hold
from rampcli.run_directory import RunDirectory, read_rows
from run_files import state

ACTOR = str(Path(__file__).with_name("actor.py"))
TESTS = Path(__file__).parents[1]


class Listener(Observer):
    """Hears events; at the first that it waits for it asks to stop, once or twice."""

    def __init__(self, signals, stop_at, twice):
        self.signals, self.stop_at, self.twice = signals, stop_at, twice
        self.heard = []

    def on_event(self, row):
        self.heard.append(row["event"])
        if row["event"] == self.stop_at and self.signals.signal is None:
            self.signals.note(signal.SIGTERM)
            if self.twice:
                threading.Timer(0.7, self.signals.note, [signal.SIGTERM]).start()


@pytest.fixture
def play(tmp_path):
    """Supervises actors that play scenes, and calls `meanwhile` soon; returns the last state, or the error that came of them."""
    run = RunDirectory(tmp_path)

    def start(world, log):  # the first rank of all is who plays
        supervise.worlds.append(world.nodes)
        environment = worker_environment(threads=1) | {"PYTHONPATH": str(TESTS)}
        return Workers(
            [start_process([sys.executable, ACTOR, str(tmp_path)], run, log, environment)]
        )

    def supervise(*scenes, words=(), backoff_s=0.0, stop_at=None, twice=False, meanwhile=None):
        (tmp_path / "scenes.json").write_text(json.dumps(scenes))
        run.write_state(state())
        overrides = [f"run_dir={tmp_path}", f"launch.backoff_s={backoff_s}", *words]
        resolved = resolve(lay_over(llm.from_factory("llama3_tiny"), overrides))
        signals = supervise.signals = StopSignals()
        listener = Listener(signals, stop_at, twice)
        supervisor = Supervisor(
            resolved=resolved, run=run, start=start, observer=listener, signals=signals
        )
        if meanwhile:
            threading.Timer(0.5, meanwhile).start()
        try:
            return supervisor.go_through(one_stage=False)["status"], listener
        except RampcliError as error:
            return error, listener

    supervise.run, supervise.worlds = run, []
    return supervise


def events(run, kind):
    return [row for row in read_rows(run.events) if row["event"] == kind]


COMPLETE = [["steps", 1, 9], ["say", "complete"]]


def test_workers_that_crash_are_started_again_until_the_run_is_complete(play):
    status, listener = play(
        [["steps", 1, 3], ["die"]], [["die"]], [["steps", 1, 1], ["end with", "a word"]], COMPLETE
    )
    assert status == "complete"
    assert listener.heard.count("fault") == 3
    faults = [row["reason"] for row in events(play.run, "fault")]
    log = play.run.logs / "stage_0.log"
    assert faults[0] == (
        f"the workers of stage 0 crashed (rank 0 was killed by SIGKILL; log: {log}); they start again from the beginning:"
        " restart 1 of at most 3"
    )
    assert f"(exit code 1; log: {log}, which ends: a word); they start again" in faults[2]
    assert [row["exit_code"] for row in events(play.run, "exit")] == [-9, -9, 1, 0]
    assert len(events(play.run, "launch")) == 4


def test_more_crashes_than_there_are_restarts_end_the_run(play):
    error, _ = play(
        [["steps", 1, 3], ["die"]],
        [["die"]],
        [["steps", 1, 4], ["die"]],
        words=["launch.max_restarts=2"],
    )
    assert (
        "they crashed 3 times, with launch.max_restarts=2 (rank 0 was killed by SIGKILL; log: "
        in error.message
    )
    assert (error.exit_code, len(events(play.run, "launch"))) == (1, 3)
    assert (play.run.read_state()["status"], play.run.read_state()["error"]["message"]) == (
        "failed",
        error.message,
    )


def test_a_crash_in_the_same_step_twice_ends_the_run(play):
    error, _ = play(
        [["steps", 1, 3], ["die"]],
        [["steps", 2, 3], ["fail", "RuntimeError: an address", False]],
        COMPLETE,
    )
    assert (
        "they crashed in step 4 twice, one start after the other (RuntimeError: an address"
        in error.message
    )
    assert play.run.read_state()["error"]["message"] == error.message
    assert len(events(play.run, "launch")) == 2


def test_an_error_that_a_user_has_to_mend_ends_the_run_at_once(play):
    error, _ = play([["steps", 1, 3], ["fail", "the disk is full", True]])
    assert error.message.startswith("the workers failed: the disk is full (log: ")
    assert (error.exit_code, len(events(play.run, "launch"))) == (4, 1)


@pytest.mark.parametrize("status", ["complete", "preempted"])
def test_what_state_json_says_counts_and_not_how_the_processes_ended(play, status):
    assert play([["steps", 1, 3], ["say", status], ["die"]])[0] == status


def test_workers_that_are_asked_to_stop_save_and_the_run_is_preempted(play):
    status, _ = play([["steps", 1, 3], ["save when asked"]], stop_at="listening")
    assert status == "preempted"


def test_before_there_is_anything_to_save_a_run_is_preempted_as_well(play):
    assert play([["listen"]], stop_at="listening")[0] == "preempted"
    assert play.run.read_state()["status"] == "preempted"


def test_workers_that_do_not_save_in_time_are_killed_and_that_is_said(play):
    began = time.monotonic()
    error, _ = play(
        [["steps", 1, 3], ["turn a deaf ear"]], words=["launch.grace_s=0.5"], stop_at="listening"
    )
    assert "the workers did not save within launch.grace_s=0.5 s" in error.message
    assert error.exit_code == 1
    assert time.monotonic() - began < 10


def test_a_second_signal_ends_the_run_at_once(play):
    began = time.monotonic()
    error, _ = play([["steps", 1, 3], ["turn a deaf ear"]], stop_at="listening", twice=True)
    assert (
        "the workers were killed at the second signal; the same command goes on from the last checkpoint"
        in error.message
    )
    assert error.exit_code == 1
    assert time.monotonic() - began < 10


def test_a_start_that_fails_before_the_first_step_is_tried_twice_and_its_last_words_are_quoted(
    play,
):
    error, _ = play([["end with", "the first line\nno module\x1b[2J of that name\n\n"]])
    log = play.run.logs / "stage_0.log"
    assert error.message.startswith(
        "the workers are not started again: they crashed before the first step twice, one start after the other"
    )
    assert error.message.endswith(r", which ends: no module\x1b[2J of that name)")
    assert str(log) in events(play.run, "fault")[0]["reason"]
    assert len(events(play.run, "launch")) == 2


def test_what_an_earlier_start_has_printed_is_not_quoted(play):
    error, _ = play(
        [["steps", 1, 3], ["end with", "a word"]], [["die"]], words=["launch.max_restarts=1"]
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


def test_nodes_that_are_lost_count_as_crashes_and_the_others_go_on_at_once(play):
    error, _ = play([["die"]], words=[*ELASTIC, "launch.max_restarts=2"], backoff_s=30)
    assert (
        "they crashed 3 times, with launch.max_restarts=2 (rank 0 was killed by SIGKILL; log: "
        in error.message
    )
    assert play.worlds == [(0, 1, 2), (1, 2), (2,)]
    assert [row["world_size"] for row in events(play.run, "launch")] == [3, 2, 1]
    assert events(play.run, "fault")[1]["reason"].startswith(
        "lost node 1 (killed by SIGKILL); the 1 left go on without it; it is started again in 60 s: restart 2 of at most 2 (log: "
    )
    assert play.run.read_state()["status"] == "failed"


@pytest.mark.parametrize(
    "meanwhile",
    [[["steps", 1, 3], ["save when asked"]], [["steps", 1, 3], ["turn a deaf ear"]], [["listen"]]],
)
def test_a_node_that_comes_back_trains_with_the_others_once_they_have_saved_or_cannot(
    play, meanwhile
):
    status, listener = play(
        [["die"]], meanwhile, COMPLETE, words=[*ELASTIC, "launch.grace_s=0.5"], backoff_s=2
    )
    assert (status, play.worlds) == ("complete", [(0, 1, 2), (1, 2), (0, 1, 2)])
    assert listener.heard.count("fault") == 1


def test_a_run_that_is_asked_to_stop_while_it_waits_for_nodes_or_for_a_save_is_preempted(play):
    words = [*ELASTIC, "launch.min_nodes=3"]
    assert play([["die"]], words=words, backoff_s=60, stop_at="fault")[0] == "preempted"
    assert events(play.run, "fault")[0]["reason"].startswith(
        "lost node 0 (killed by SIGKILL); the 2 left wait for it, with launch.min_nodes=3; it is started again in 60 s"
    )
    assert (
        play(
            [["die"]],
            [["steps", 1, 3], ["save when asked"]],
            words=ELASTIC,
            backoff_s=60,
            stop_at="listening",
        )[0]
        == "preempted"
    )
    assert play.worlds == [(0, 1, 2), (0, 1, 2), (1, 2)]


def test_a_save_that_the_supervisor_did_not_ask_for_ends_the_run(play):
    for words in ([], ELASTIC):
        assert (
            play([["steps", 1, 3], ["say", "preempted"], ["die"]], COMPLETE, words=words)[0]
            == "preempted"
        )


def test_who_waits_for_others_or_for_the_next_start_can_be_asked_to_stop(play):
    signals_at = {"fault": [[["steps", 1, 3], ["die"]]], "launch": [[["die"]]]}
    for event, scenes in signals_at.items():
        began = time.monotonic()
        status, _ = play(*scenes, backoff_s=30, stop_at=event)
        assert status == "preempted"
        assert time.monotonic() - began < 10
    with hold(play.run.workers_lock, shared=True):
        launches = len(events(play.run, "launch"))
        assert play(COMPLETE, meanwhile=lambda: play.signals.note(signal.SIGTERM))[0] == "preempted"
        assert len(events(play.run, "launch")) == launches


def test_what_workers_that_were_waited_for_have_completed_is_not_done_anew(play):
    lock = hold(play.run.workers_lock, shared=True)

    def complete():
        play.run.change_status("complete")
        lock.close()

    assert play([["die"]], meanwhile=complete)[0] == "complete"
    assert events(play.run, "launch") == []


def test_beside_workers_that_live_no_others_are_started(play, monkeypatch):
    monkeypatch.setattr("rampcli.launch.supervise.OLD_WORKERS_S", 0.1)
    with hold(play.run.workers_lock, shared=True):
        error, _ = play(COMPLETE)
    assert "workers still train in" in error.message
    assert events(play.run, "launch") == []
