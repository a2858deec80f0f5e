import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rampcli.launch.stop_signals import STOPPING, catch_stop_signals
from rampcli.machine import lifeline
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
