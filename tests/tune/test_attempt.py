"""How the ranks of a trial are started and ended, with programs that stand for ranks."""

import os

import pytest

from rampcli.errors import RampcliError
from rampcli.launch.workers import Workers, start_process
from rampcli.lifeline import StopSignals
from rampcli.run_directory import RunDirectory
from rampcli.tune.run import folder_of
from rampcli.tune.sizes import own_candidate
from rampcli.tune.trial import TIMED_OUT, Effort, Trials
from searches import resolved_search


@pytest.fixture
def attempt(tmp_path, monkeypatch):
    """Tries a size with one rank, which runs a line of shell. Trials may take half a second."""
    monkeypatch.setattr("rampcli.tune.trial.STACKS_S", 0.0)
    resolved, run = resolved_search(tmp_path / "run"), RunDirectory(tmp_path / "run")
    run.claim()
    folder_of(run).claim()

    def run_line(line):
        def start(trial, _world, log):
            command = ["sh", "-c", line, str(trial.logs)]
            return Workers([start_process(command, trial, log, {**os.environ})])

        trials = Trials(
            resolved=resolved,
            run=run,
            start=start,
            signals=StopSignals(),
            effort=Effort(timeout_s=0.5),
        )
        return trials.attempt(own_candidate(resolved))

    return run_line


def test_ranks_that_do_not_start_end_the_search_and_are_no_sign_of_a_large_size(
    attempt, monkeypatch
):
    monkeypatch.setattr("rampcli.tune.trial.START_S", 0.2)
    with pytest.raises(RampcliError, match=r"no rank .* has started .*; log: "):
        attempt("sleep 600")


def test_ranks_that_start_and_give_no_result_time_out(attempt):
    outcome = attempt("touch $0/stack_0.txt; sleep 600")
    assert (outcome.verdict, outcome.timeout_s) == (TIMED_OUT, 0.5)
