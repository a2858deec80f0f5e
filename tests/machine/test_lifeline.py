import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from processes import killed_at_the_end
from rampcli.errors import EXIT_TERMINATED, RampcliError
from rampcli.machine import lifeline
from rampcli.machine.lifeline import STOPPING, catch_stop_signals, run_program
from standing import slow_clock


@pytest.fixture(params=STOPPING)
def number(request):
    """A stop signal with its default handler, even if the tests run under nohup."""
    before = signal.signal(request.param, signal.SIG_DFL)
    yield request.param
    signal.signal(request.param, before)


@pytest.fixture
def later(tmp_path, monkeypatch):
    """A file that, once created, lets time pass, which is slow otherwise."""
    monkeypatch.setattr(lifeline, "time", slow_clock(tmp_path / "later"))
    return tmp_path / "later"


def test_the_first_signal_requests_a_stop_and_a_later_one_ends_at_once(number, later):
    with catch_stop_signals() as signals:
        assert (signals.signal, signals.at_once) == (None, False)
        os.kill(os.getpid(), number)
        assert (signals.signal, signals.at_once) == (number, False)
        later.touch()
        os.kill(os.getpid(), signal.SIGTERM)
        assert (signals.signal, signals.at_once) == (number, True)
    assert signal.getsignal(number) is signal.SIG_DFL


@pytest.mark.usefixtures("later")
def test_a_signal_that_arrives_twice_at_once_counts_once():
    with catch_stop_signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert (signals.signal, signals.at_once) == (signal.SIGTERM, False)


def test_a_block_inside_another_one_shares_its_signals(number):
    with catch_stop_signals() as outer:
        with catch_stop_signals() as inner:
            os.kill(os.getpid(), number)
        assert (inner.signal, outer.signal) == (number, number)
    with catch_stop_signals() as outer:
        os.kill(os.getpid(), number)
        with catch_stop_signals() as inner:
            assert inner.signal == number
    assert signal.getsignal(number) is signal.SIG_DFL


def test_under_nohup_a_hangup_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with catch_stop_signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.signal is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_block_of_another_thread_shares_what_it_is_given():
    with catch_stop_signals() as signals, ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: catch_stop_signals(signals).__enter__().note(signal.SIGTERM)).result()
        assert signals.signal == signal.SIGTERM


def test_in_another_thread_signals_are_left_to_the_main_thread():
    handlers = [signal.getsignal(number) for number in STOPPING]
    seen = []

    def catch():
        with catch_stop_signals() as signals:
            seen.append([signal.getsignal(number) for number in STOPPING])
            signals.note(signal.SIGTERM)
            seen.append(signals.signal)

    thread = threading.Thread(target=catch)
    thread.start()
    thread.join()
    assert seen == [handlers, signal.SIGTERM]


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Writes a module with some source, and returns its name."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(source: str) -> str:
        (tmp_path / "program_of_test.py").write_text(source)
        return "program_of_test"

    return make


def test_the_exit_code_is_that_of_the_program(program):
    assert run_program(program("import sys; sys.exit(int(sys.argv[1]))"), ["5"]) == 5


@pytest.mark.parametrize(
    ("number", "name"),
    [(signal.SIGKILL, "SIGKILL"), (signal.SIGRTMIN + 1, f"signal {signal.SIGRTMIN + 1}")],
)
def test_a_program_that_was_killed_is_reported_with_the_signal(program, number, name):
    with pytest.raises(RampcliError, match=f"program_of_test was killed by {name}"):
        run_program(
            program("import os, sys; os.kill(os.getpid(), int(sys.argv[1]))"), [str(int(number))]
        )


ENGINE = """
import signal, sys, tempfile
from rampcli.weights.program import run_and_exit

def main():
    with tempfile.TemporaryDirectory(dir=sys.argv[1]):
        print("unfinished", flush=True)
        signal.pause()

run_and_exit(main)
"""
COMMAND = """
import sys
from rampcli.machine.lifeline import run_program
sys.exit(run_program(sys.argv[1], sys.argv[2:]))
"""


def test_sigterm_also_ends_the_program_which_removes_unfinished_files(program, tmp_path):
    (tmp_path / "out").mkdir()
    command = [sys.executable, "-P", "-c", COMMAND, program(ENGINE), str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with killed_at_the_end(process):
        assert process.stdout is not None
        assert process.stdout.readline() == "unfinished\n"
        process.terminate()
        assert process.communicate(timeout=300) == ("", "")
    assert process.returncode == EXIT_TERMINATED
    assert list((tmp_path / "out").iterdir()) == []
