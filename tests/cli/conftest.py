import gc
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from rampcli.cli.main import main
from rampcli.plugins import extensions

NEMO_FILES = Path(__file__).parents[1] / "words" / "nemo_files"


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended, with the processor seconds that it took."""

    exit_code: int
    stdout: str
    stderr: str
    cpu_s: float


@pytest.fixture(autouse=True)
def forgets_extensions(monkeypatch):
    """Forgets after a test what it has registered."""
    monkeypatch.setattr(extensions, "REGISTERED", {**extensions.REGISTERED})
    monkeypatch.setenv(
        extensions.EXTENSIONS_VARIABLE, os.environ.get(extensions.EXTENSIONS_VARIABLE, "")
    )


@pytest.fixture
def rampcli(monkeypatch, capsys):
    """Runs a command in this process, without GPUs."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def run(*words: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["rampcli", *words])
        began = time.process_time()
        try:
            main()
            exit_code = 0
        except SystemExit as end:
            exit_code = end.code or 0
        finally:
            gc.enable()  # main() disables it for a short command; this process continues
        printed = capsys.readouterr()
        return Ended(exit_code, printed.out, printed.err, time.process_time() - began)

    return run


@pytest.fixture
def succeed(rampcli):
    """Runs a command that must succeed, and returns its stdout."""

    def run(*words: str) -> str:
        ended = rampcli(*words)
        assert (ended.exit_code, ended.stderr) == (0, "")
        return ended.stdout

    return run


@pytest.fixture
def json_of(succeed):
    """Runs a command with `--json` that must succeed, and returns what it printed."""
    return lambda *words: json.loads(succeed(*words, "--json"))


@pytest.fixture
def refuse(rampcli):
    """Runs a command that must exit with 2 and print nothing, and returns its stderr."""

    def run(*words: str) -> str:
        ended = rampcli(*words)
        assert (ended.exit_code, ended.stdout) == (2, "")
        return ended.stderr

    return run


@pytest.fixture
def nemo_tree(tmp_path):
    """Writes NeMo's tree with two training files, and returns the words that name one of them."""
    folder = tmp_path / "conf" / "training" / "gpt3"
    folder.mkdir(parents=True)
    text = (NEMO_FILES / "tiny.yaml").read_text()
    (folder / "tiny.yaml").write_text(text)
    (folder / "other.yaml").write_text(text.replace("micro_batch_size: 2", "micro_batch_size: 1"))
    return ["--config-dir", "conf", "training=gpt3/tiny"]


@pytest.fixture
def stages(json_of):
    """Returns a function that plans and returns the stages of `--json`."""
    return lambda *words: json_of("plan", *words)["stages"]
