"""Kills processes of a run at random instants: a few here, a hundred with `make stress`."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from processes import children_of, wait_until_all_have_ended
from runs import Run, environment

KILLS = int(os.environ.get("KILLS", "5"))
SEED = int(os.environ.get("SEED", "0"))
BOUNDARIES = max(3, KILLS // 4)
LONGEST_WAIT_S = 8.0
WORDS = [
    "trainer.num_nodes=2",
    f"model.global_batch_size={2 + 6 * BOUNDARIES}",
    f"model.rampup_batch_size=[2,6,{400 * KILLS}]",
    f"trainer.max_samples={600 * KILLS}",
    "trainer.val_every_steps=20",
    "checkpoint.every_steps=7",
    "checkpoint.async=true",
    "launch.max_restarts=1000",
    "launch.backoff_s=0",
]


class Killer:
    """Kills processes of a run, and starts its command again after it has ended."""

    def __init__(self, run: Run, numbers: random.Random) -> None:
        self.run = run
        self.output = run.path.with_suffix(".txt")
        self.numbers = numbers
        self.supervisor = self._start()
        self.killed: list[tuple[str, str]] = []

    def _start(self) -> subprocess.Popen[str]:
        with self.output.open("a") as output:
            return subprocess.Popen(
                self.run.command(*WORDS), env=environment(), stdout=output, stderr=output
            )

    def strike(self) -> None:
        """Waits for a random instant, and kills a process."""
        instants: dict[str, Callable[[], object]] = {
            "step": lambda: len(self._metrics()) > rows,
            "save": lambda: list(self.run.directory.checkpoints.glob("*.tmp")),
            "boundary": lambda: self._events().count(b"stage_boundary") > boundaries,
            "validation": lambda: self._events().count(b'"validation"') > validations,
            "start": lambda: self._events().count(b'"launch"') > launches,
        }
        rows, events = len(self._metrics()), self._events()
        boundaries, validations, launches = (
            events.count(word) for word in (b"stage_boundary", b'"validation"', b'"launch"')
        )
        instant = self.numbers.choice(list(instants))
        until = time.monotonic() + LONGEST_WAIT_S
        while (
            not instants[instant]() and time.monotonic() < until and self.supervisor.poll() is None
        ):
            time.sleep(0.002)
        time.sleep(self.numbers.choice([0.0, 0.01, 0.2, 2.0]) * self.numbers.random())
        victim = self.numbers.choice(["worker", "supervisor"])
        if found := self._processes(victim):
            self.killed.append((victim, instant))
            with suppress(ProcessLookupError):
                os.kill(self.numbers.choice(found), signal.SIGKILL)
        if victim == "supervisor":
            self.supervisor.wait()

    def restart(self) -> bool:
        """Starts the command again if it has ended; returns whether the run is complete."""
        code = self.supervisor.poll()
        if code is None:
            return False
        if code == 0:
            return True
        said = self.output.read_text()
        assert (
            code == -signal.SIGKILL or "twice, one start after the other" in said.splitlines()[-2]
        ), said[-2000:]
        self.supervisor = self._start()
        return False

    def _processes(self, kind: str) -> list[int]:
        return [self.supervisor.pid] if kind == "supervisor" else children_of(self.supervisor.pid)

    def _metrics(self) -> bytes:
        return _bytes_of(self.run.directory.metrics)

    def _events(self) -> bytes:
        return _bytes_of(self.run.directory.events)


def _bytes_of(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def test_a_run_that_is_killed_at_random_instants_is_as_if_nothing_had_happened(
    run, tmp_path, assert_every_sample_is_read_once
):
    undisturbed = Run(tmp_path / "undisturbed")
    done = undisturbed.pretrain(*WORDS)
    assert done.returncode == 0, done.stderr
    killer = Killer(run, random.Random(SEED))
    while len(killer.killed) < KILLS and not killer.restart():
        killer.strike()
    while not killer.restart():
        time.sleep(0.1)
    print(f"seed {SEED}: {killer.killed}")
    assert len(killer.killed) == KILLS
    assert_every_sample_is_read_once(run)
    assert [row["loss"] for row in run.rows] == [row["loss"] for row in undisturbed.rows]
    assert run.validations() == undisturbed.validations()
    assert run.state["status"] == "complete"
    wait_until_all_have_ended(run.path)
    assert [path.name for path in run.directory.checkpoints.glob("*.tmp")] == []
