"""A tracker and a launcher that are added where CONTRIBUTING says, and nowhere else, work."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.test_contributing import ROOT, rows
from rampcli.runs.directory import RunDirectory
from rampcli.runs.rows import read_rows
from tiny_runs import TINY

TOYS = ROOT / "tests/toys"
SHORT = TINY | {
    "trainer.num_nodes": "1",
    "trainer.max_samples": "24",
    "trainer.val_samples": "0",
    "model.rampup_batch_size": "null",
}
WORDS = ["--factory", "llama3_tiny", *(f"{key}={value}" for key, value in SHORT.items())]


class House:
    """A copy of the package, whose commands a test runs in an empty folder beside it."""

    def __init__(self, path: Path) -> None:
        self.path, self.here = path / "house", path / "here"
        self.here.mkdir()
        ignored = shutil.ignore_patterns("__pycache__")
        for folder in ("rampcli", "conf", "recipes"):
            shutil.copytree(ROOT / folder, self.path / folder, ignore=ignored)

    def add(self, row: str, name: str, *, entry: str, files: dict[str, Path | str]) -> None:
        """Adds a part: files in folders that a row names, and an entry in the table that it names.

        Args:
            row: what is added, as CONTRIBUTING calls it.
            name: name of the part.
            entry: Python expression for the table.
            files: sources by path.
        """
        named = [place.partition(":") for place in rows()[row]]
        for path, source in files.items():
            assert any(Path(folder) in Path(path).parents for folder, _, _ in named), path
            (self.path / path).parent.mkdir(exist_ok=True)
            shutil.copy(source, self.path / path)
        ((file, table),) = [(file, what) for file, _, what in named if what.isupper()]
        with (self.path / file).open("a") as text:
            text.write(f"\n\n{table}[{name!r}] = {entry}\n")

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs a program of Python that imports the copy."""
        environment = os.environ | {"PYTHONPATH": str(self.path), "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            words, cwd=self.here, env=environment, capture_output=True, text=True, check=False
        )

    def rampcli(self, *words: str) -> str:
        """Runs a command that succeeds, and returns what it prints."""
        done = self.run(sys.executable, "-P", "-m", "rampcli", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def refused(self, *words: str) -> str:
        """Runs a command that is refused, and returns its message."""
        done = self.run(sys.executable, "-P", "-m", "rampcli", *words)
        assert done.returncode == 2, done.stdout + done.stderr
        return done.stderr


@pytest.fixture
def house(tmp_path):
    return House(tmp_path)


def rows_of(house):
    return list(read_rows(RunDirectory(house.here / "run").metrics))


def test_a_tracker_is_a_module_and_one_entry(house):
    house.add(
        "a tracker",
        "toy",
        entry='TrackerModule(module="rampcli.tracking.toy")',
        files={"rampcli/tracking/toy.py": TOYS / "tracker.py"},
    )
    words = [*WORDS, "logging.trackers=[toy]", "run_dir=run"]
    assert "`toy`" in house.rampcli("explain", "--factory", "llama3_tiny", "logging.trackers")
    assert "toy" in house.refused("plan", *WORDS, "logging.trackers=[tow]")
    house.rampcli("pretrain", *words)
    name, *lines = (house.here / "run/trackers/toy.txt").read_text().splitlines()
    assert name == "llama3_tiny"
    trained = [line.split() for line in lines if not line.endswith("None")]
    assert trained == [[str(row["step"]), str(row["loss"])] for row in rows_of(house)]


@pytest.fixture
def launching(house):
    """A house with the toy launcher, whose jobs wait until their scripts are run."""
    house.add(
        "a launcher",
        "toy",
        entry='"rampcli.launch.toy"',
        files={f"rampcli/launch/toy/{file.name}": file for file in TOYS.glob("launcher/*.py")},
    )
    return house


def do_job(house, script):
    """Runs a script as the toy's shelf does."""
    done = house.run("bash", str(house.here / script))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def state_of(house, run="run"):
    return json.loads(house.rampcli("status", run, "--json"))


def test_a_launcher_is_a_folder_and_one_entry(launching):
    words = [*WORDS, "launch.launcher=toy", "run_dir=run"]
    explained = launching.rampcli("explain", "--factory", "llama3_tiny", "launch.launcher")
    assert "`toy`: nowhere by itself." in explained
    assert "Shelf on which jobs wait." in launching.rampcli("explain", "launch.toy.shelf")
    assert "launch.toy.shelf" in launching.refused("plan", *words, "launch.toy.shelf=cellar")
    assert "rampcli.launch.toy.job" in launching.rampcli("pretrain", *words, "--dry-run")
    assert "the shelf is there" in launching.rampcli("doctor", *words)

    launching.rampcli("pretrain", *words)
    assert "on the shelf" in launching.refused("pretrain", *words)
    waiting = state_of(launching)
    assert (waiting["state"], waiting["jobs"][0]["state"]) == ("waiting", "SHELVED")
    assert "asked" not in launching.rampcli("cancel", "run")
    assert state_of(launching)["jobs"][0]["state"] is None

    launching.rampcli("pretrain", *words)
    do_job(launching, "run/toy/train.sh")
    assert state_of(launching)["state"] == "complete"
    assert rows_of(launching)[-1]["consumed_samples"] == 24
    launching.rampcli("report", "run")


def test_a_launcher_that_submits_jobs_runs_searches_and_sweeps(launching):
    one = ["model.global_batch_size=1", "data.micro_batch_size=1", "launch.launcher=toy"]
    words = [word for word in WORDS if not word.startswith(("model.global", "data.micro"))]
    words += one
    search = ["tune", *words, "run_dir=run", "--steps", "5"]
    launching.rampcli(*search)
    do_job(launching, "run/tune/toy/search.sh")
    found = json.loads(launching.rampcli(*search, "--json", "launch.toy.shelf=lower"))
    assert found["recommended"] == 1

    sweep = [*words, "optim.lr=0.1,0.2", "name=swept"]
    launching.rampcli("sweep", *sweep)
    assert len([*(launching.here / "runs").glob("**/toy/train.sh")]) == 2
    assert launching.rampcli("sweep", *sweep).count("has jobs in the queue") == 2
