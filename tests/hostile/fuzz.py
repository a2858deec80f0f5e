"""Damages files and command lines at random and checks the laws of every command: `make fuzz`.

Environment: MINUTES (default 60) and SEED (default: a random one). A case depends on its seed and
its number alone, and `CASE=SEED:NUMBER` runs one again. The files of a finding are kept in a
folder, whose name is printed.
"""

import fcntl
import gc
import json
import os
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TextIO

from hostile import mutations
from hostile.calling import Ended, call
from hostile.cases.shards import make_honest
from hostile.laws import broken_laws
from hostile.materials import NEWER, OLDER, SHARD, make_materials
from hostile.mutations import Mutation
from hostile.world import World
from run_files import chained_job

KNOWN_CODES = (0, 1, 2, 4, 5)
USES = ("run", "corpus", "hf", "in.jsonl", "half.building")
MADE = (
    "out",
    "mine",
    "half.bin",
    "half.idx",
    "half.json",
    "half.tokenizer.json",
    "half.skipped.jsonl",
)
CHANGED = ("half.building", "run/slurm")
"""Files that the commands below may write. Nothing else may change."""
KEPT = Path(__file__).parents[2] / ".fuzz"
MATERIALS = KEPT / "materials"
PROGRESS_EVERY_S = 60.0
JOBS = json.dumps({"jobs": [chained_job()], "submitted": 1.0, "cancelled": False})
OPTIONS = (
    "lr: 0.001\nmin_lr: 0.0001\nbeta1: 0.9\nbeta2: 0.95\nweight_decay: 0.1\nwarmup_samples: 100\n"
)
PLANTED = {
    "run/slurm/jobs.json": JOBS,
    "theirs/optim/mine.yaml": OPTIONS,
    "run/lock": json.dumps({"host": socket.gethostname(), "pid": 1}),
}


@dataclass(frozen=True, slots=True)
class Target:
    """Files that are damaged, and a command that reads them.

    Attributes:
        files: one of them, or all, are damaged in a case.
        mutation: how.
        command: reads them.
        honest: checkpoints whose manifests are made to fit in half of the cases.
        holds_lock: True if the run's lock is held meanwhile.
    """

    files: tuple[str, ...]
    mutation: Mutation
    command: str
    honest: tuple[str, ...] = ()
    holds_lock: bool = False


GENERATE, STATUS, CANCEL, INSPECT = (
    "generate run --prompt text --max-tokens 2",
    "status run",
    "cancel run",
    "data inspect corpus",
)
BUILD = "data build in.jsonl --output half --tokenizer bytes"
MANIFESTS = tuple(f"{checkpoint}/manifest.json" for checkpoint in (OLDER, NEWER))
SHARDS = tuple(f"{checkpoint}/{SHARD}" for checkpoint in (OLDER, NEWER))
TOKENIZERS = tuple(f"{checkpoint}/tokenizer.json" for checkpoint in (OLDER, NEWER))
TARGETS = (
    Target(("run/state.json", "run/slurm/jobs.json", *MANIFESTS), mutations.json_at_random, STATUS),
    Target(("run/state.json", *MANIFESTS), mutations.json_at_random, f"{STATUS} --json"),
    Target(("run/metrics.jsonl",), mutations.rows_at_random, STATUS),
    Target(("run/lock",), mutations.json_at_random, STATUS, holds_lock=True),
    Target(("run/lock", "run/slurm/jobs.json"), mutations.json_at_random, CANCEL, holds_lock=True),
    Target(("run/config.yaml",), mutations.yaml_at_random, GENERATE),
    Target(("run/config.yaml",), mutations.yaml_at_random, "export run out"),
    Target(MANIFESTS, mutations.json_at_random, GENERATE),
    Target(SHARDS, mutations.tensors_at_random, GENERATE, honest=(OLDER, NEWER)),
    Target(SHARDS, mutations.tensors_at_random, "export run out", honest=(OLDER, NEWER)),
    Target(TOKENIZERS, mutations.json_at_random, GENERATE, honest=(OLDER, NEWER)),
    Target(("corpus.idx",), mutations.numbers_at_random, INSPECT),
    Target(("corpus.bin",), mutations.bytes_at_random, f"{INSPECT} --verify"),
    Target(("corpus.json", "corpus.tokenizer.json"), mutations.json_at_random, INSPECT),
    Target(("hf/config.json",), mutations.json_at_random, "import hf mine/model/x.yaml"),
    Target(
        ("half.building/progress.json", "half.building/settings.json"),
        mutations.json_at_random,
        BUILD,
    ),
    Target(
        ("half.building/tokens.bin", "half.building/lengths.bin"), mutations.bytes_at_random, BUILD
    ),
    Target(
        ("theirs/optim/mine.yaml",),
        mutations.yaml_at_random,
        "plan -f llama3_tiny --config-dir theirs optim=mine",
    ),
)
COMMANDS = (
    "plan -f llama3_8b model.global_batch_size=1024 trainer.num_nodes=16"
    " 'model.rampup_batch_size=[256,128,50000000]'",
    "plan -f gpt3_5b --json data.micro_batch_size=4 trainer.max_tokens=300B"
    " 'model.step_batch_size_schedule=0:768 250B:1536'",
    "plan -f llama3_tiny --what-if model.global_batch_size=8,16,32",
    "explain model.global_batch_size trainer.max_steps=5",
    "generate run --prompt text --max-tokens 2 --temperature 0.5 --top-k 3 --seed 1 --step 4",
    "data inspect corpus --verify --json",
    "status run --json",
)
SHARE_OF_WORDS = 0.05
"""A small share, because these cases take longest."""


@dataclass(slots=True)
class Fuzzer:
    """Runs cases one after another in one world.

    Attributes:
        folder: of the world. Its first contents are kept beside it.
        materials: folder of the files that the world is made of.
        findings: how often each one was seen.
    """

    folder: Path
    materials: Path
    findings: Counter[str] = field(default_factory=Counter)
    _world: World = field(init=False)

    def __post_init__(self) -> None:
        self._begin_anew()
        gc.freeze()  # a full collection after each command would look through torch, too

    @property
    def _honest(self) -> Path:
        """The folder with the original contents."""
        return self.folder.with_name("honest")

    def _begin_anew(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self._world = World.build(self.folder, self.materials, USES)
        for name, text in PLANTED.items():
            self._world.path(name).write_text(text)
        shutil.rmtree(self._honest, ignore_errors=True)
        shutil.copytree(self._world.here, self._honest)

    def run(self, seed: int, number: int) -> None:
        """Runs one case and records the rules that it breaks."""
        random = Random(f"{seed}:{number}")
        damaged, words, lock = self._planted(random)
        before = _facts_of(self.folder)
        with lock as held:
            if held is not None:
                fcntl.flock(held, fcntl.LOCK_EX)
            ended = call(*words, cwd=self._world.here)
        ended.signalled = [
            process for process in ended.signalled if held is None or process != os.getpid()
        ]
        after = _facts_of(self.folder)
        touched = sorted(
            name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
        )
        broken = [
            *broken_laws(ended, codes=KNOWN_CODES),
            *(f"touched {name}" for name in touched if not _may_change(name)),
        ]
        if broken:
            self._note(f"{seed}:{number}", words, [*damaged], broken, ended)
        self._restore(damaged, touched)

    def _planted(
        self, random: Random
    ) -> tuple[dict[str, bytes], list[str], AbstractContextManager[TextIO | None]]:
        """Returns the old contents of damaged files, the command, and the holder of the lock."""
        here = self._world.here
        if random.random() < SHARE_OF_WORDS:
            return (
                {},
                mutations.words_at_random(random, shlex.split(random.choice(COMMANDS))),
                nullcontext(),
            )
        target = random.choice(TARGETS)
        names = target.files if random.random() < 0.3 else (random.choice(target.files),)
        names += tuple(f"{checkpoint}/manifest.json" for checkpoint in target.honest)
        damaged = {name: (here / name).read_bytes() for name in names}
        for name in names[: len(names) - len(target.honest)]:
            (here / name).write_bytes(target.mutation(random, damaged[name]))
        if random.random() < 0.5:
            for checkpoint in target.honest:
                make_honest(self._world, checkpoint)
        return (
            damaged,
            shlex.split(target.command),
            (here / "run/lock").open("a") if target.holds_lock else nullcontext(),
        )

    def _restore(self, damaged: dict[str, bytes], touched: list[str]) -> None:
        if any(not _may_change(name) for name in touched):
            self._begin_anew()
            return
        here, honest = self._world.here, self._honest
        for name, content in damaged.items():
            if not name.startswith(CHANGED):
                (here / name).write_bytes(content)
        paths = (*damaged, *(name.removeprefix("here/") for name in touched))
        for name in (
            *MADE,
            *(name for name in CHANGED if any(path.startswith(name) for path in paths)),
        ):
            self._world.clear(name)
            if (honest / name).is_dir():
                shutil.copytree(honest / name, here / name)

    def _note(
        self, case: str, words: list[str], damaged: list[str], broken: list[str], ended: Ended
    ) -> None:
        frames = re.findall(r'File ".*?/(rampcli/[^"]*)", line (\d+)', ended.stderr)
        last = ended.stderr.strip().splitlines()[-1][:200] if "a traceback" in broken else ""
        place, kind = ":".join(frames[-1]) if frames else "", last.partition(":")[0]
        signature = f"{'; '.join(broken)[:200]} {place} {kind}"
        self.findings[signature] += 1
        if self.findings[signature] == 1:
            kept = KEPT / case.replace(":", "-")
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(self._world.here, kept / "here", symlinks=True)
            (kept / "finding.txt").write_text(
                f"{shlex.join(['rampcli', *words])}\n{damaged}\n{broken}\n"
                f"{ended.stdout}\n{ended.stderr}\n"
            )
            print(
                f"finding: CASE={case} {ascii(shlex.join(words))[:200]}\n"
                f"  damaged {damaged}: {broken} {last!r}\n  kept in {kept}",
                flush=True,
            )


def _may_change(name: str) -> bool:
    inner = name.removeprefix("here/")
    return inner != name and any(
        inner == allowed or inner.startswith(f"{allowed}/") for allowed in (*MADE, *CHANGED)
    )


def _facts_of(folder: Path) -> dict[str, tuple[int, ...]]:
    """Returns inode, size and time of every file below a folder, and the inodes of folders."""
    found: dict[str, tuple[int, ...]] = {}
    pending = [str(folder)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                facts = entry.stat(follow_symlinks=False)
                is_folder = entry.is_dir(follow_symlinks=False)
                found[entry.path[len(str(folder)) + 1 :]] = (
                    (facts.st_ino,)
                    if is_folder
                    else (facts.st_ino, facts.st_size, facts.st_mtime_ns)
                )
                if is_folder:
                    pending.append(entry.path)
    return found


def cases_until(is_over: Callable[[], bool], *, first: int) -> Iterator[int]:
    """Yields numbers of cases until the time is over."""
    number = first
    while not is_over():
        yield number
        number += 1


def fuzz_here(seed: int, first: int, until: float, at: Path) -> int:
    """Runs cases in this process until a time; returns 1 if there are findings.

    Args:
        seed: of the cases.
        first: number of the first case.
        until: seconds since 1970.
        at: file that holds the number of the current case.
    """
    with tempfile.TemporaryDirectory() as scratch, at.open("r+") as progress:
        fuzzer = Fuzzer(Path(scratch) / "world", MATERIALS)
        for number in cases_until(lambda: time.time() >= until, first=first):
            progress.seek(0)
            progress.write(f"{number:<20}")
            progress.flush()
            fuzzer.run(seed, number)
    return 1 if fuzzer.findings else 0


def main() -> int:
    """Runs a process on each processor. A killed process is a finding and is replaced."""
    if "CASE" in os.environ:
        seed, number = map(int, os.environ["CASE"].split(":"))
        with tempfile.TemporaryDirectory() as scratch:
            if not MATERIALS.exists():
                MATERIALS.mkdir(parents=True)
                make_materials(MATERIALS)
            fuzzer = Fuzzer(Path(scratch) / "world", MATERIALS)
            fuzzer.run(seed, number)
        return 1 if fuzzer.findings else 0
    seed, seconds = (
        int(os.environ.get("SEED") or secrets.randbelow(10**6)),
        60 * float(os.environ.get("MINUTES") or 60),
    )
    shutil.rmtree(KEPT, ignore_errors=True)
    MATERIALS.mkdir(parents=True)
    make_materials(MATERIALS)
    lanes = [
        Lane(seed + lane, time.time() + seconds, KEPT / f"at-{lane}")
        for lane in range(len(os.sched_getaffinity(0)))
    ]
    began = told = time.monotonic()
    print(f"seed {seed}, {len(lanes)} processes, {seconds / 60:g} minutes", flush=True)
    while sum(lane.is_running() for lane in lanes):  # not any(): every lane is checked
        time.sleep(0.2)
        if time.monotonic() >= told + PROGRESS_EVERY_S:
            told = time.monotonic()
            print(f"{sum(lane.number for lane in lanes):,} cases", flush=True)
    cases, took = sum(lane.number for lane in lanes), time.monotonic() - began
    failed = any(lane.failed for lane in lanes)
    found = "findings above" if failed else "no finding"
    print(f"{cases:,} cases, {cases / took:.0f} per second, {found}")
    return 1 if failed else 0


@dataclass(slots=True)
class Lane:
    """One process that runs cases, and its successors."""

    seed: int
    until: float
    at: Path
    failed: bool = False
    _process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self._start(0)

    def _start(self, first: int) -> None:
        self.at.write_text(f"{first:<20}")
        words = [str(self.seed), str(first), str(self.until), str(self.at)]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "hostile.fuzz", *words],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    @property
    def number(self) -> int:
        """The number of the current case."""
        return int(self.at.read_text() or 0)

    def is_running(self) -> bool:
        """Returns True while the lane has time left. Replaces its process if it died."""
        code = self._process.poll()
        if code is None:
            return True
        self.failed = self.failed or code != 0
        if code in (0, 1) and time.time() >= self.until:
            return False
        print(f"finding: CASE={self.seed}:{self.number} ended the process with {code}", flush=True)
        self._start(self.number + 1)
        return True


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(
            fuzz_here(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]))
        )
    sys.exit(main())
