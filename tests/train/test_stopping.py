import signal
import subprocess
import sys

import pytest

from rampcli.train.stopping import ASK_EVERY_S, STOP_SIGNALS, StopRequest

LISTENER = """
import os, signal, sys
from types import SimpleNamespace
from rampcli.machine import lifeline
from rampcli.train.stopping import StopRequest
now_s = 0.0
lifeline.time = SimpleNamespace(monotonic=lambda: now_s)
stop = StopRequest(exits_at_second_signal=sys.argv[2] == "ends")
stop.listen()
for wait_s in map(float, sys.argv[3:]):
    os.kill(os.getpid(), int(sys.argv[1]))
    now_s += wait_s
sys.exit(75 if stop.asked else 0)
"""


@pytest.mark.parametrize("number", STOP_SIGNALS)
@pytest.mark.parametrize(
    ("waits_s", "code"), [((), 0), (("0",), 75), (("0", "0", "0"), 75), (("0.6", "9"), 1)]
)
def test_a_signal_requests_a_stop_and_a_later_one_ends_the_process(number, waits_s, code):
    assert (
        subprocess.run(
            [sys.executable, "-c", LISTENER, str(int(number)), "ends", *waits_s], check=False
        ).returncode
        == code
    )


def test_a_supervised_process_ignores_a_second_signal():
    number = str(int(signal.SIGTERM))
    assert (
        subprocess.run(
            [sys.executable, "-c", LISTENER, number, "says nothing", "0.6", "0"], check=False
        ).returncode
        == 75
    )


@pytest.mark.parametrize("micro_batch_s", [0.001, 0.01, 0.3, 0.9, 5.0])
def test_ranks_synchronise_stop_requests_about_once_a_second(micro_batch_s):
    stop = StopRequest()
    stop.expect(micro_batch_s)
    asked = [number for number in range(1, 5001) if stop.is_time_to_ask()]
    between_s = asked[0] * micro_batch_s
    assert asked == list(range(asked[0], 5001, asked[0]))
    assert (
        between_s == micro_batch_s
        if micro_batch_s > ASK_EVERY_S
        else ASK_EVERY_S / 2 < between_s < 2 * ASK_EVERY_S
    )


def test_ranks_synchronise_after_every_micro_batch_until_its_time_is_known():
    assert StopRequest().is_time_to_ask()
