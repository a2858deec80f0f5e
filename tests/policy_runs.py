"""Runs of reinforcement learning on a tiny model that sorts three digits, and how to start them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from once import make_once
from rampcli.cli.base import Base
from rampcli.cli.composing import compose_rl
from rampcli.launch.run import write_run_files
from rampcli.launch.workers import RL_WORKER
from rampcli.runs.rows import read_rows
from ranks import run_program, run_ranks
from tiny_runs import Run

MODEL = {
    "data": "pairs",
    "data.task": "sort",
    "data.task_digits": "3",
    "data.tokenizer": "chars",
    "data.sequence_length": "8",
    "data.audit_order": "true",
    "model.vocab_size": "16",
    "model.hidden_size": "32",
    "model.num_layers": "2",
    "model.ffn_hidden_size": "64",
    "model.rampup_batch_size": "null",
    "trainer.accelerator": "cpu",
    "trainer.num_nodes": "1",
}
# Half of the answers that the model samples then are right.
PRETRAINING = {
    "data.micro_batch_size": "100",
    "model.global_batch_size": "100",
    "optim.lr": "1e-2",
    "optim.warmup_samples": "100",
    "trainer.max_samples": "5000",
    "trainer.val_samples": "0",
    "trainer.val_every_steps": "null",
}
# Two groups in each of four micro batches. The vocabulary has tokens that are never drawn.
POLICY = {
    "rl.prompts_per_step": "8",
    "rl.generations_per_prompt": "4",
    "rl.micro_batch_size": "8",
    "rl.kl_weight": "0.1",
    "rl.samples_every_steps": "2",
    "optim.lr": "1e-3",
    "trainer.max_steps": "4",
    "trainer.val_samples": "12",
    "trainer.val_every_steps": "3",
}

SAME = ("step", "lr", "order_hash", "pairs", "reward", "solved", "response_tokens", "cut_responses")
"""Columns that are the same on any ranks."""
SAME_BITS = (*SAME, "loss", "grad_norm", "ratio", "clipped", "old_kl", "reference_kl", "entropy")
"""Columns that are also the same whether rollout and training overlap or take turns."""


class PolicyRun(Run):
    """A run directory of reinforcement learning, and the ways to train in it.

    Args:
        path: the run directory.
        start: the run whose weights it starts from.
    """

    def __init__(self, path: Path, start: Path) -> None:
        super().__init__(path)
        self.start_from = start

    def beside(self, name: str) -> "PolicyRun":
        """Returns another run from the same weights."""
        return PolicyRun(self.path.with_name(name), self.start_from)

    def overrides(self, words: Sequence[str]) -> list[str]:
        settings = {
            **MODEL,
            **POLICY,
            "model.init_from": str(self.start_from),
            "run_dir": str(self.path),
            **dict(word.split("=", 1) for word in words),
        }
        return [f"{key}={value}" for key, value in settings.items()]

    def command(self, *words: str) -> list[str]:
        command = super().command(*words)
        command[command.index("pretrain")] = "rl"
        return command

    def describe(self, *words: str) -> None:
        self.path.mkdir(exist_ok=True)
        resolved = compose_rl(Base(factory="llama3_tiny"), self.overrides(words))
        write_run_files(self.directory, resolved, [])

    def workers(self, processes: int, *words: str, folders: Sequence[Path] | None = None) -> None:
        self.describe(f"trainer.devices={processes}", *words)
        run_ranks(
            processes,
            run_program,
            RL_WORKER,
            str(self.path),
            logs=self.directory.logs,
            folders=folders,
        )

    @property
    def responses(self) -> list[dict]:
        return list(read_rows(self.directory.responses))

    def column(self, name: str) -> list[Any]:
        """Returns a column of metrics.jsonl."""
        return [row[name] for row in self.rows]

    def evaluations(self) -> list[dict]:
        """Returns the results of the last evaluation of each step, without the times."""
        found = (event for event in self.events if event["event"] == "evaluation")
        last_of_step = {event["step"]: event for event in found}
        return [
            {name: value for name, value in event.items() if name not in ("time", "evaluation_s")}
            for _, event in sorted(last_of_step.items())
        ]


def assert_same_bits(run: PolicyRun, other: PolicyRun) -> None:
    """Checks that two runs have the same results without any rounding."""
    for name in SAME_BITS:
        assert run.column(name) == other.column(name), name
    assert run.evaluations() == other.evaluations()
    assert run.responses == other.responses


def assert_same_policies(run: PolicyRun, other: PolicyRun) -> None:
    """Checks that two runs drew the same responses and learnt the same from them."""
    for name in SAME:
        assert run.column(name) == other.column(name), name
    for row, reference in zip(run.rows, other.rows, strict=True):
        for name in ("loss", "ratio", "reference_kl", "entropy"):
            assert row[name] == pytest.approx(reference[name], abs=2e-5), name
        assert row["grad_norm"] == pytest.approx(reference["grad_norm"], rel=2e-4)
    assert run.evaluations() == other.evaluations()
    assert run.responses == other.responses


class Pretraining(Run):
    """A run that teaches the form of an answer."""

    def overrides(self, words: Sequence[str]) -> list[str]:
        settings = MODEL | PRETRAINING | {"run_dir": str(self.path)}
        settings |= dict(word.split("=", 1) for word in words)
        return [f"{key}={value}" for key, value in settings.items()]


def weights_to_start_from(factory: pytest.TempPathFactory) -> Path:
    """Returns a run whose model sorts half of all numbers."""

    def train(path: Path) -> None:
        Pretraining(path).workers(1)

    return make_once(factory, "sorter", train)
