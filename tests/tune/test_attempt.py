"""How the ranks of a trial are started and ended, with programs that stand for ranks."""

import os
import threading

import pytest

from processes import wait_until
from rampcli.errors import RampcliError
from rampcli.files.locks import hold, is_held
from rampcli.launch.run import write_run_files
from rampcli.launch.workers import Workers, start_process
from rampcli.machine.interpreter import python_command
from rampcli.machine.lifeline import WAIT, StopSignals
from rampcli.runs.directory import RunDirectory
from rampcli.tune.run import folder_of
from rampcli.tune.sizes import own_candidate
from rampcli.tune.trial import RANK, TIMED_OUT, Trials
from rampcli.tune.trial_files import Effort, TrialDirectory
from searches import resolved_search


@pytest.fixture
def attempt(tmp_path, monkeypatch):
    """Tries a size with one rank, which runs a line of shell. Trials may take half a second."""
    monkeypatch.setattr("rampcli.tune.trial.STACKS_S", 0.0)
    whole = RunDirectory(tmp_path / "run")
    resolved = resolved_search(whole.path)
    whole.claim()

    def run_line(line, *, diagnoses=False, phase=None):
        run = whole.folder_of_phase(phase)
        run.path.parent.mkdir(exist_ok=True)
        run.claim()

        def start(trial, _world, log):
            run_line.beside_others.append(is_held(whole.workers_lock))
            command = ["sh", "-c", line, str(trial.logs)]
            return Workers([start_process(command, trial, log, {**os.environ})])

        trials = Trials(
            resolved=resolved,
            run=run,
            start=start,
            signals=StopSignals(),
            effort=Effort(timeout_s=0.5),
            diagnoses=diagnoses,
        )
        return trials.attempt(own_candidate(resolved))

    run_line.beside_others = []
    return run_line


def test_a_search_may_follow_a_diagnosis_in_the_same_run(attempt, tmp_path):
    attempt("touch $0/stack_0.txt; sleep 600", diagnoses=True)
    folder = folder_of(resolved_search(tmp_path / "run"))
    assert sorted(path.name for path in folder.path.iterdir()) == [".rampcli", "diagnose"]
    write_run_files(folder, resolved_search(tmp_path / "run"), [])  # as a search does


def test_ranks_that_do_not_start_end_the_search_and_are_no_sign_of_a_large_size(
    attempt, monkeypatch
):
    monkeypatch.setattr("rampcli.tune.trial.START_S", 0.2)
    with pytest.raises(RampcliError, match=r"no rank .* has started .*; log: "):
        attempt("sleep 600")


@pytest.mark.parametrize("phase", [None, "long"])
def test_a_trial_waits_for_ranks_whose_search_or_training_was_killed(attempt, tmp_path, phase):
    lock = hold(tmp_path / "run/workers.lock", shared=True)
    threading.Timer(0.3, lock.close).start()
    attempt("touch $0/stack_0.txt; sleep 600", phase=phase)
    assert attempt.beside_others == [False]


@pytest.mark.parametrize("phase", [None, "long"])
def test_a_rank_holds_the_lock_of_its_run_until_it_ends(phase, tmp_path):
    run = RunDirectory(tmp_path / "run")
    trial = TrialDirectory(run.folder_of_phase(phase).path / "tune/micro_1")
    trial.logs.mkdir(parents=True)
    command = python_command(RANK, str(trial.path), WAIT)
    rank = start_process(command, trial, trial.log, {**os.environ}, has_input=True)
    wait_until(lambda: is_held(run.workers_lock))
    rank.kill()
    rank.wait()
    assert not is_held(run.workers_lock)


def test_ranks_that_start_and_give_no_result_time_out(attempt):
    outcome = attempt("touch $0/stack_0.txt; sleep 600")
    assert (outcome.verdict, outcome.timeout_s) == (TIMED_OUT, 0.5)
