"""What happens if the memory of a GPU is short."""

import json
import os
import signal

import pytest

from commands import Command, run_command
from gpu_rehearsal.gpu_runs import MEMORY_BYTES, gpu_environment
from processes import children_of, wait_until
from tiny_runs import Run

LARGE, TIGHT = 4093, 2467
"""Numbers of samples. A step of `LARGE` needs more memory than a GPU has. That of `TIGHT` needs
less, but not without blocks that other tensors of the step have left.

They are prime, so a search tries one of them and 1.
"""


def words_of(command: str, run: Run, *words: str, micro: int = LARGE) -> list[str]:
    """Returns the words of a command whose largest micro batch is `micro`."""
    settings = [
        "trainer.accelerator=gpu",
        "trainer.val_samples=0",
        "model.rampup_batch_size=null",
        f"model.global_batch_size={2 * micro}",
        f"data.micro_batch_size={micro}",
        "launch.max_restarts=0",
    ]
    return [command, "--factory", "llama3_tiny", *words, *run.overrides(settings)]


@pytest.mark.parametrize(
    ("micro", "verdict", "reason"),
    [
        (LARGE, "out of memory", "ran out of memory"),
        (TIGHT, "thrashes", "the GPU's memory was full"),
    ],
)
def test_a_search_finds_the_sizes_that_fit_in_the_memory_of_a_gpu(tmp_path, micro, verdict, reason):
    run = Run(tmp_path / "run")
    found = run_command(words_of("tune", run, "--steps", "1", micro=micro), gpu_environment())
    assert found.returncode == 0, found.stderr
    assert "largest that fits: 1;" in found.stdout
    trials = json.loads((run.path / "tune.json").read_text())["trials"]
    fits, does_not = sorted(trials, key=lambda trial: trial["micro_batch_size"])
    assert does_not["micro_batch_size"] == micro
    assert does_not["verdict"] == verdict
    assert reason in does_not["reason"]
    assert fits["verdict"] == "fits"
    assert fits["device"] == "cuda:0"
    assert 0 < fits["peak_memory_bytes"] < MEMORY_BYTES


def test_a_trial_that_hangs_times_out(tmp_path):
    """A slow machine changes nothing: there is one size, and no trial of it ends in time."""
    run = Run(tmp_path / "run")
    words = words_of("tune", run, "--steps", "1", "--timeout", "3", micro=1)
    command = Command(words, gpu_environment())
    wait_until(lambda: len(list(run.path.rglob("stack_*.txt"))) == 2, command)  # of both ranks
    os.kill(children_of(command.pid)[1], signal.SIGSTOP)
    _, errors = command.communicate()
    assert command.returncode == 1
    assert "data.micro_batch_size=1 fits: timed out (no result after 3 s; rank 0 in " in errors


def test_a_run_that_needs_too_much_memory_ends_with_an_error_that_says_so(tmp_path):
    run = Run(tmp_path / "run")
    ended = run_command(words_of("pretrain", run), gpu_environment())
    assert ended.returncode == 1
    assert "ran out of memory" in ended.stderr
    assert run.rows == []
