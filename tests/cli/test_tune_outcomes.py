"""How `rampcli tune` ends, with outcomes of trials that no rank is started for."""

import os
import signal

import pytest

from rampcli.launch.stop_signals import STOPPING
from rampcli.tune.trial import Trials


@pytest.fixture
def tune(rampcli, monkeypatch):
    """Runs a search or a diagnosis in which every attempt calls a function with the candidate."""

    def run(attempt, *words):
        monkeypatch.setattr(Trials, "attempt", lambda _, candidate: attempt(candidate))
        return rampcli("tune", "--factory", "llama3_tiny", "trainer.num_nodes=1", *words)

    return run


@pytest.fixture(params=STOPPING)
def number(request):
    """A stop signal with its default handler, even if the tests run under nohup."""
    before = signal.signal(request.param, signal.SIG_DFL)
    yield request.param
    signal.signal(request.param, before)


@pytest.mark.parametrize("option", ["--fresh", "--diagnose"])
def test_the_exit_code_names_the_signal_that_stopped_it(option, number, tune):
    def stop(_):
        os.kill(os.getpid(), number)

    ended = tune(stop, option)
    assert ended.exit_code == (130 if number == signal.SIGINT else 75)
    assert "interrupted" in ended.stdout
