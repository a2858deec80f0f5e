"""Behaves as workers do, for tests of who supervises them: writes what they write, at once, and ends as it is told."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from rampcli.locks import hold
from rampcli.run_directory import RunDirectory
from run_files import metrics_row, state


def main() -> None:
    """Play the next of the scenes in RUN/scenes.json, the last one again and again."""
    run = RunDirectory(Path(sys.argv[1]))
    scenes = json.loads((run.path / "scenes.json").read_text())
    if len(scenes) > 1:
        (run.path / "scenes.json").write_text(json.dumps(scenes[1:]))
    lock = hold(run.workers_lock, shared=True)
    for action, *arguments in scenes[0]:
        ACTIONS[action](run, *arguments)
    lock.close()


def take_steps(run: RunDirectory, first: int, last: int) -> None:
    run.append_event("start", step=first - 1)
    for step in range(first, last + 1):
        run.append_row(run.metrics, metrics_row(step=step))


def say(run: RunDirectory, status: str, **facts: object) -> None:
    run.write_state({**(run.read_state() or state()), "status": status, **facts})


def fail(run: RunDirectory, message: str, understood: bool) -> None:
    say(
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
    signal.signal(signal.SIGTERM, lambda *_: (say(run, "preempted"), sys.exit(75)))
    run.append_event("listening")
    time.sleep(60)


def turn_a_deaf_ear(run: RunDirectory) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    run.append_event("listening")
    time.sleep(60)


ACTIONS = {
    "steps": take_steps,
    "say": say,
    "fail": fail,
    "end with": lambda _, words: sys.exit(words),
    "die": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "save when asked": save_when_asked,
    "turn a deaf ear": turn_a_deaf_ear,
    "listen": lambda run: (run.append_event("listening"), time.sleep(60)),
}

if __name__ == "__main__":
    main()
