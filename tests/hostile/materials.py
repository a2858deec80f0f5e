"""A corpus, a run on it with two checkpoints, and its export, for hostile cases to damage."""

import json
import subprocess
import sys
from pathlib import Path

from commands import run_command
from tiny_runs import TINY, environment

WORDS = TINY | {
    "data": "indexed",
    "data.path": "corpus",
    "data.split": "[90,10,0]",
    "model.vocab_size": "256",
    "model.rampup_batch_size": "null",
    "model.global_batch_size": "4",
    "trainer.max_samples": "16",
    "trainer.val_samples": "4",
    "trainer.num_nodes": "1",
    "checkpoint.every_steps": "1",
    "run_dir": "run",
    "optim.warmup_samples": "4",
}


def pretrain(*words: str) -> str:
    """Returns the words of the command that trains the run, with some settings changed."""
    settings = WORDS | dict(word.split("=", 1) for word in words)
    return " ".join(
        ["pretrain -f llama3_tiny", *(f"{key}={value}" for key, value in settings.items())]
    )


PRETRAIN = pretrain()
"""Trains the run, or says that it is complete."""
OLDER, NEWER = "run/checkpoints/step_00000003", "run/checkpoints/step_00000004"
STOPPED_BUILD = """\
from pathlib import Path
from rampcli.data.building.build import build
from rampcli.data.building.options import BuildOptions
from rampcli.data.building.partial import Watcher
class Stopping(Watcher):
    def on_progress(self, consumed_bytes, written):
        if written is not None:
            raise KeyboardInterrupt
try:
    inputs = (Path("in.jsonl"),)
    build(BuildOptions(inputs=inputs, output=Path("half"), tokenizer="bytes"), Stopping())
except KeyboardInterrupt:
    pass
"""
SHARD = "shard-00001-model-00001-of-00001.safetensors"


def make_materials(folder: Path) -> None:
    """Fills an empty folder with the materials."""
    texts = (json.dumps({"text": f"text number {number}"}) + "\n" for number in range(60))
    (folder / "in.jsonl").write_text("".join(texts))
    commands = (
        "data build in.jsonl --output corpus --tokenizer bytes",
        PRETRAIN,
        "export run hf",
    )
    for command in commands:
        done = run_command(command.split(), environment(), folder)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    subprocess.run([sys.executable, "-P", "-c", STOPPED_BUILD], cwd=folder, check=True)
    assert (folder / "half.building/progress.json").exists()
