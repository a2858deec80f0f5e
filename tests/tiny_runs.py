"""Runs of a tiny model, the ways to start them, and checks that hold after any interruption."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from commands import Command, run_command
from distributed.average import newest_average
from processes import wait_until_all_have_ended
from rampcli import llm
from rampcli.batch.averages import AVERAGES
from rampcli.config.compose import apply_overrides
from rampcli.launch.run import write_run_files
from rampcli.planning.resolve import resolve
from rampcli.runs.directory import RunDirectory
from rampcli.runs.event_kinds import TimePart
from rampcli.runs.record import read_run
from rampcli.runs.rows import read_rows
from ranks import run_ranks, train_rank

# A model that takes a step in milliseconds, and a ramp 2 -> 4 -> 6 -> 8 on 1, 2, 3 and 4 nodes of
# one process.
TINY = {
    "data": "mock",
    "data.sequence_length": "16",
    "data.micro_batch_size": "2",
    "data.audit_order": "true",
    "model.vocab_size": "64",
    "model.hidden_size": "32",
    "model.num_layers": "2",
    "model.ffn_hidden_size": "64",
    "model.global_batch_size": "8",
    "model.rampup_batch_size": "[2,2,48]",
    "optim.optimizer": "adamw",
    "optim.lr": "3e-3",
    "optim.min_lr": "3e-4",
    "optim.warmup_samples": "8",
    "trainer.max_samples": "82",
    "trainer.val_samples": "10",
    "trainer.val_every_steps": "5",
    "trainer.accelerator": "cpu",
}
# Makes a model of the kind of GPT.
GPT = {
    "model.normalization": "layernorm",
    "model.activation": "gelu",
    "model.position_embedding": "learned",
    "model.num_query_groups": "null",
    "model.bias": "true",
    "model.tie_embeddings": "true",
}
# Batches of 1, 2 and 3 samples on 1, 2 and 3 nodes; the first two sizes get six samples each.
RAMP_OF_JOBS = {
    "launch": "slurm",
    "trainer.accelerator": "cpu",
    "trainer.num_nodes": "3",
    "trainer.devices": "1",
    "data.micro_batch_size": "1",
    "model.global_batch_size": "3",
    "model.rampup_batch_size": "[1,1,12]",
    "trainer.max_samples": "30",
    "optim.warmup_samples": "2",
}


def environment() -> dict[str, str]:
    """Returns the environment of commands, which have one thread each."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


class Run:
    """A run directory, and the ways to train in it: the command, or workers without one."""

    def __init__(self, path: Path) -> None:
        self.directory = RunDirectory(path)
        self.path = path

    def overrides(self, words: Sequence[str]) -> list[str]:
        settings = TINY | {"run_dir": str(self.path)} | dict(word.split("=", 1) for word in words)
        return [f"{key}={value}" for key, value in settings.items()]

    def command(self, *words: str) -> list[str]:
        options = [word for word in words if word.startswith("--")]
        overrides = self.overrides([word for word in words if word not in options])
        return [
            sys.executable,
            "-m",
            "rampcli",
            "pretrain",
            "--factory",
            "llama3_tiny",
            *options,
            *overrides,
        ]

    def start(self, *words: str, prepare: Callable[[], object] | None = None) -> Command:
        """Starts the command in a process that has loaded torch, and has called `prepare`."""
        return Command(self.command(*words)[3:], environment(), prepare=prepare)

    def pretrain(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs the command, to its end, in a process that has loaded torch."""
        return run_command(self.command(*words)[3:], environment())

    def complete(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs the command to its end, as `pretrain` does, and checks that it succeeds."""
        done = self.pretrain(*words)
        assert done.returncode == 0, done.stderr
        return done

    def pretrain_from_scratch(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs the command, to its end, as a shell does."""
        return subprocess.run(
            self.command(*words), env=environment(), text=True, capture_output=True, check=False
        )

    def describe(self, *words: str) -> None:
        """Writes config.yaml, so that ranks can be started by hand."""
        self.path.mkdir(exist_ok=True)
        config = llm.from_factory("llama3_tiny")
        write_run_files(self.directory, resolve(apply_overrides(config, self.overrides(words))), [])

    def workers(self, processes: int, *words: str, folders: Sequence[Path] | None = None) -> None:
        """Trains to the end with a fixed number of workers and no supervisor.

        Raises:
            AssertionError: a worker failed; the message holds the logs.
        """
        self.describe(f"trainer.num_nodes={processes}", *words)
        run_ranks(processes, train_rank, str(self.path), logs=self.directory.logs, folders=folders)

    def beside(self, name: str) -> "Run":
        """Returns another run, in a folder beside this one."""
        return Run(self.path.with_name(name))

    @property
    def rows(self) -> list[dict]:
        return list(read_rows(self.directory.metrics))

    @property
    def events(self) -> list[dict]:
        return list(read_rows(self.directory.events))

    @property
    def state(self) -> dict:
        return json.loads((self.path / "state.json").read_text())

    def events_of(self, kind: str) -> list[dict]:
        return [row for row in self.events if row["event"] == kind]

    def validations(self) -> dict[int, float]:
        return {row["step"]: row["loss"] for row in self.events_of("validation")}


def assert_every_sample_is_read_once(run: Run) -> None:
    """Checks that each row counts exactly the samples that the ranks have read so far."""
    chain, consumed = "", 0
    for number, row in enumerate(run.rows, start=1):
        samples = b"".join(
            sample.to_bytes(8, "little")
            for sample in range(consumed, consumed + row["global_batch_size"])
        )
        chain, consumed = (
            hashlib.sha256(chain.encode() + samples).hexdigest(),
            consumed + row["global_batch_size"],
        )
        assert (row["step"], row["consumed_samples"], row["order_hash"]) == (
            number,
            consumed,
            chain,
        )


def assert_killed_run_equals(run: Run, undisturbed: Run) -> None:
    """Checks that a run whose processes were killed has all results of an undisturbed one.

    Losses, validations and averages are equal, bit for bit. The lost time is counted, and neither
    processes nor unfinished checkpoints are left.
    """
    assert_every_sample_is_read_once(run)
    assert [row["loss"] for row in run.rows] == [row["loss"] for row in undisturbed.rows]
    assert run.validations() == undisturbed.validations()
    for kind in AVERAGES:
        averages, expected = (newest_average(each.directory, kind) for each in (run, undisturbed))
        assert averages.keys() == expected.keys()
        assert all(torch.equal(average, expected[name]) for name, average in averages.items())
    assert run.state["status"] == "complete"
    spent = read_run(run.directory).time_spent()
    first, *_, last = run.events
    assert spent.elapsed_s == pytest.approx(last["time"] - first["time"], abs=0.01)
    assert spent.parts[TimePart.LOST] > 0
    wait_until_all_have_ended(run.path)
    assert [path.name for path in run.directory.checkpoints.glob("*.tmp")] == []


def assert_same_training(run: Run, undisturbed: Run) -> None:
    """Checks that two runs took the same steps on the same samples and reached the same losses."""
    assert_every_sample_is_read_once(run)
    for row, reference in zip(run.rows, undisturbed.rows, strict=True):
        for key in ("stage", "global_batch_size", "consumed_tokens", "order_hash", "lr"):
            assert row[key] == reference[key]
        assert row["loss"] == pytest.approx(reference["loss"], abs=1e-5)
        assert row.get("z_loss", 0) == pytest.approx(reference.get("z_loss", 0), rel=1e-5)
        # The optimiser divides gradients by their size, so it enlarges the rounding of tiny ones.
        assert row["grad_norm"] == pytest.approx(
            reference["grad_norm"], rel=1e-5 if row["step"] == 1 else 2e-4
        )
    assert run.validations() == pytest.approx(undisturbed.validations(), abs=1e-5)
