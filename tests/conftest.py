import contextlib
import copy
import gc
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

# One thread per process, here and in all child processes: torch reads this when it is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Torch compiles in the process itself, and starts no pool of processes that load torch again.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# No test asks the Hugging Face hub. Those of downloads start a server of their own.
os.environ["HF_HUB_OFFLINE"] = "1"

import typer
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

import ranks
from models.families import GPT
from processes import killed_at_the_end
from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.launch.workers import reserve_port
from rampcli.planning.resolve import resolve
from rampcli.planning.run_plan import Resolved
from rampcli.settings.config import Config
from rampcli.settings.model import ModelConfig

ROOT = Path(__file__).parent

# A shell starts commands in the background with SIGINT ignored, and their children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Only a loss of power would show which files have reached the disk, and a busy disk takes long.
os.fsync = lambda _: None

# The commands are the same in all tests, and making them takes a seventh of a short one.
typer.main.get_command = cache(typer.main.get_command)

# No deadline: a busy machine is slow.
settings.register_profile("rampcli", deadline=None, max_examples=60)
settings.load_profile("rampcli")

TOGETHER = ("tests/slurm/", "tests/distributed/test_compiling.py")
"""Tests that one process runs, because they share a cluster, network addresses or compiled code."""
LONG = ("slurm", "distributed", "hostile", "first_hour", "rl", "cli")
"""Folders whose tests take longest. They run first, so that no process ends with a long test."""
APART = ("tests/distributed/", "tests/hostile/")
"""Tests of which each goes to the next free process. Elsewhere, a file goes there as a whole."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    def place(item):
        folder = item.path.relative_to(ROOT).parts[0]
        return LONG.index(folder) if folder in LONG else len(LONG)

    items.sort(key=place)


def pytest_collection_finish():
    gc.freeze()  # collecting what imports and the tests themselves created takes half a second


class Scheduling(LoadScopeScheduling):
    """Gives each file to the next free process of the run, tests `APART` one by one."""

    def _split_scope(self, nodeid):
        together = next((prefix for prefix in TOGETHER if nodeid.startswith(prefix)), None)
        if together is None and nodeid.startswith(APART):
            return nodeid
        return together or nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config, log):
    return Scheduling(config, log)


@pytest.fixture(autouse=True, scope="session")
def _leaves_the_start_folder(tmp_path_factory):
    """Leaves the folder that pytest is started in.

    Fixtures of modules and sessions run before those of a test, and may start processes.
    """
    with contextlib.chdir(tmp_path_factory.mktemp("working_directory")):
        yield


@pytest.fixture(autouse=True)
def _starts_in_an_empty_folder(_leaves_the_start_folder, tmp_path):
    """Makes `tmp_path` the working directory, so that no test finds a user's files or runs."""
    with contextlib.chdir(tmp_path):
        yield


@pytest.fixture
def supervisor(run):
    """A process that holds the lock of `run`, the run directory of the test's file."""
    program = """
import signal, sys
from pathlib import Path
from rampcli.launch.run_lock import lock_run
from rampcli.runs.directory import RunDirectory
with lock_run(RunDirectory(Path(sys.argv[1]))):
    print("held", flush=True)
    signal.pause()
"""
    process = subprocess.Popen([sys.executable, "-c", program, run.path], stdout=subprocess.PIPE)
    with killed_at_the_end(process):
        process.stdout.readline()
        yield process


@pytest.fixture(scope="session")
def alone():
    """Forms a process group of one rank, so that code for many ranks runs in this process."""
    import torch.distributed as dist  # not in the process that deals the tests out

    with reserve_port() as reserved:
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{reserved.getsockname()[1]}", rank=0, world_size=1
        )
        yield
        dist.destroy_process_group()


@pytest.fixture
def build_passes(alone):  # noqa: ARG001
    """Builds a model with its initial weights in this process, like a worker."""
    return ranks.build_passes


@pytest.fixture
def small_llama() -> Config:
    return Config(
        model=ModelConfig(
            num_layers=2,
            hidden_size=32,
            ffn_hidden_size=48,
            num_attention_heads=4,
            num_query_groups=2,
            vocab_size=64,
        )
    )


@pytest.fixture
def small_gpt() -> Config:
    return Config(
        model=ModelConfig(
            num_layers=2,
            hidden_size=32,
            ffn_hidden_size=128,
            num_attention_heads=4,
            vocab_size=64,
            **GPT,
        )
    )


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Writes programs, each a line of sh by its name, and puts them on PATH before a path."""
    folder = tmp_path / "bin"

    def write(path: str = "/usr/bin:/bin", **lines: str) -> None:
        folder.mkdir(exist_ok=True)
        for name, line in lines.items():
            (folder / name).write_text(f"#!/bin/sh\n{line}\n")
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", ":".join(filter(None, (str(folder), path))))

    return write


@pytest.fixture
def other_torch(tmp_path, monkeypatch):
    """Puts a fake torch before the installed one on the path of processes."""

    def write(text: str, **packages: str) -> None:
        for name, content in {"": text, **packages}.items():
            (tmp_path / "other/torch" / name).mkdir(parents=True)
            (tmp_path / "other/torch" / name / "__init__.py").write_text(content)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "other"))

    return write


@pytest.fixture(scope="session")
def planned():
    """The plan of a recipe with words laid over it."""
    composed: dict[str, Config] = {}

    def plan(name: str, *words: str) -> Resolved:
        if name not in composed:
            composed[name] = llm.from_factory(name)
        return resolve(apply_overrides(composed[name], words))

    return plan


@pytest.fixture(scope="session")
def composed():
    """A recipe's configuration, shared by all tests; they must not change it."""
    return llm.gpt3_5b.pretrain_recipe()


@pytest.fixture
def recipe(composed):
    """A recipe's configuration that a test may change."""
    return copy.deepcopy(composed)


@pytest.fixture(scope="session")
def line_of():
    """Returns the number of the line in a file of this repository that consists of a text."""

    def number(file: str, text: str) -> int:
        lines = (Path(__file__).parents[1] / file).read_text(encoding="utf-8").splitlines()
        return 1 + next(index for index, line in enumerate(lines) if line.strip() == text)

    return number


@pytest.fixture(scope="session")
def gpt3_5b_place(line_of):
    """The place of values set by the recipe gpt3_5b: the line of its call of `compose`."""
    first_line = line_of("recipes/gpt3.py", '"name=gpt3_5b",')
    return f"recipes/gpt3.py:{first_line - 1}"
