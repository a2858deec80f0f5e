"""Replaces workers in tests of the supervisor: writes their files and exits, as scripted."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from rampcli.files.locks import hold
from rampcli.runs.directory import RunDirectory
from rampcli.runs.rows import read_rows
from run_files import metrics_row, state


def main() -> None:
    """Plays the scene of the second argument in the run directory of the first."""
    run = RunDirectory(Path(sys.argv[1]))
    lock = hold(run.workers_lock, shared=True)
    for action, *arguments in json.loads(sys.argv[2]):
        ACTIONS[action](run, *arguments)
    lock.close()


def take_steps(run: RunDirectory, first: int, last: int) -> None:
    run.append_event("start", step=first - 1)
    for step in range(first, last + 1):
        run.append_row(run.metrics, metrics_row(step=step))


def set_status(run: RunDirectory, status: str, **facts: object) -> None:
    run.write_state({**(run.read_state() or state()), "status": status, **facts})


def fail(run: RunDirectory, message: str, understood: bool) -> None:
    set_status(
        run,
        "failed",
        error={
            "message": message,
            "set_by": [],
            "remedy": None,
            "exit_code": 4,
            "understood": understood,
        },
    )
    sys.exit(1)


def save_when_asked(run: RunDirectory) -> None:
    signal.signal(signal.SIGTERM, lambda *_: (set_status(run, "preempted"), sys.exit(75)))
    run.append_event("listening")
    time.sleep(1000)


def be_killed_beside(run: RunDirectory) -> None:
    while not any(row["event"] == "listening" for row in read_rows(run.events)):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def ignore_signals(run: RunDirectory) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    run.append_event("listening")
    time.sleep(1000)


ACTIONS = {
    "steps": take_steps,
    "status": set_status,
    "fail": fail,
    "print and fail": lambda _, text: sys.exit(text),
    "abort": lambda _, text: (print(text, file=sys.stderr, flush=True), os.abort()),
    "be killed": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "be killed beside one that listens": be_killed_beside,
    "save when asked": save_when_asked,
    "ignore signals": ignore_signals,
    "wait": lambda run: (run.append_event("listening"), time.sleep(1000)),
}

if __name__ == "__main__":
    main()
