"""Kills processes of a run at random instants, a hundred times unless `KILLS` says otherwise."""

import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from functools import partial
from itertools import cycle
from pathlib import Path

from processes import children_of, wait_until
from tiny_runs import Run, assert_killed_run_equals, environment

KILLS = int(os.environ.get("KILLS", "100"))
SEED = int(os.environ.get("SEED", "0"))
INSTANTS = ["step", "save", "boundary", "validation", "start"]
WRITTEN_AT = {"boundary": "stage_boundary", "validation": "validation", "start": "launch"}
"""Words that mark an instant in events.jsonl."""
VICTIMS = ["worker", "supervisor"]
DELAYS_S = [0.0, 0.01, 0.1, 0.5]
"""Longest delays of a kill after an instant."""
BOUNDARIES = max(3, KILLS // 4)
STAGE = 24 * KILLS
"""Samples of each stage but the last one, which has twice as many."""
WORDS = [
    "trainer.num_nodes=2",
    "rampup.node_policy=best",
    f"model.global_batch_size={2 + 2 * BOUNDARIES}",
    f"model.rampup_batch_size=[2,2,{STAGE * BOUNDARIES}]",
    f"trainer.max_samples={STAGE * (BOUNDARIES + 2)}",
    "trainer.val_every_steps=10",
    "checkpoint.every_steps=4",
    "checkpoint.async=true",
    "average.ema=2000",
    "average.merge=from:steps:9",
    f"phases.long.until=samples:{STAGE * (BOUNDARIES // 2) + STAGE // 2}",
    "phases.short.data.sequence_length=8",
    "phases.short.optim.weight_decay=0.2",
    "launch.max_restarts=1000",
    "launch.backoff_s=0",
]
"""Stages on one node and on two, in turn. One of them is cut by the end of a phase."""
LAST_STAGE = BOUNDARIES + 1


class Killer:
    """Kills processes of a run, and starts its command again after it has ended.

    Commands start Python and torch, and may be killed meanwhile.

    Attributes:
        killed: the instants and victims so far. The instant is "last stage" if the planned one does
            not come again.
    """

    def __init__(self, run: Run, numbers: random.Random) -> None:
        self.run = run
        self.numbers = numbers
        self.killed: list[tuple[str, str]] = []
        self._plan = plan_kills(numbers)
        self._output = run.path.with_suffix(".txt")
        self._supervisor = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._output.open("ab") as output:
            return subprocess.Popen(
                self.run.command(*WORDS), env=environment(), stdout=output, stderr=output
            )

    def strike(self) -> None:
        """Waits for the next planned instant, and kills a process."""
        instant, victim = self._plan[len(self.killed)]
        before = self._count(instant)
        if instant in ("boundary", "start") and self._is_in_last_stage():
            instant = "last stage"
        else:
            instant = wait_until(partial(self._seen, instant, before), every_s=0.002)
        wait_until(lambda: self._processes(victim) or self._supervisor.poll() is not None)
        time.sleep(self.numbers.choice(DELAYS_S) * self.numbers.random())
        if found := self._processes(victim):
            self.killed.append((instant, victim))
            with suppress(ProcessLookupError):
                os.kill(self.numbers.choice(found), signal.SIGKILL)
            if victim == "supervisor":
                self._supervisor.wait()

    def restart(self) -> bool:
        """Starts the command again if it has ended; returns whether the run is complete."""
        code = self._supervisor.poll()
        if code is None:
            return False
        if code == 0:
            return True
        # Kills may strike the workers twice at the same step.
        if code != -signal.SIGKILL:
            assert "on two consecutive starts" in self.run.state["error"]["message"], code
        self._supervisor = self._start()
        return False

    def _processes(self, kind: str) -> list[int]:
        """Returns the running processes of a kind."""
        if self._supervisor.poll() is not None:
            return []
        return [self._supervisor.pid] if kind == "supervisor" else children_of(self._supervisor.pid)

    def _seen(self, instant: str, before: int) -> str | None:
        """Returns an instant if it has come, "ended" if it cannot, or else None."""
        if self._count(instant) > before:
            return instant
        return None if self._supervisor.poll() is None else "ended"

    def _count(self, instant: str) -> int:
        """Returns a number that grows when an instant comes."""
        directory = self.run.directory
        if instant == "step":
            return directory.metrics.stat().st_size if directory.metrics.exists() else 0
        if instant == "save":
            return max(map(changed_ns, directory.checkpoints.glob("*.tmp")), default=0)
        written = directory.events.read_bytes() if directory.events.exists() else b""
        return written.count(f'"{WRITTEN_AT[instant]}"'.encode())

    def _is_in_last_stage(self) -> bool:
        return any(
            row["event"] == "stage" and row["stage"] == LAST_STAGE for row in self.run.events
        )


def changed_ns(folder: Path) -> int:
    """Returns when a folder was last changed, or 0 if it does not exist any more."""
    with suppress(FileNotFoundError):
        return folder.stat().st_mtime_ns
    return 0


def plan_kills(numbers: random.Random) -> list[tuple[str, str]]:
    """Draws instants and victims, so that five kills are at five instants, and ten all pairs."""
    victims = cycle(numbers.sample(VICTIMS, len(VICTIMS)))
    rounds = -(-KILLS // len(INSTANTS))
    instants = [
        instant for _ in range(rounds) for instant in numbers.sample(INSTANTS, len(INSTANTS))
    ]
    return list(zip(instants, victims, strict=False))[:KILLS]


def test_a_run_killed_at_random_instants_equals_an_undisturbed_run(tmp_path):
    run = Run(tmp_path / "run")
    undisturbed = Run(tmp_path / "undisturbed")
    done = undisturbed.pretrain(*WORDS)
    assert done.returncode == 0, done.stderr
    killer = Killer(run, random.Random(SEED))
    while len(killer.killed) < KILLS and not killer.restart():
        killer.strike()
    wait_until(killer.restart)
    print(f"seed {SEED}: {killer.killed}")
    assert len(killer.killed) == KILLS
    assert_killed_run_equals(run, undisturbed)
