"""Golden losses: ten steps of three recipes, made small, on one process.

`make goldens` writes them, and `test_goldens.py` compares.
"""

import json
import tempfile
from pathlib import Path

from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.launch.run import write_run_files
from rampcli.planning.resolve import resolve
from rampcli.runs.directory import RunDirectory
from rampcli.runs.rows import read_rows
from ranks import run_ranks, train_rank

FILE = Path(__file__).with_name("goldens.json")
SMALL = {
    "data": "mock",
    "data.sequence_length": 64,
    "data.micro_batch_size": 2,
    "data.audit_order": "true",
    "model.num_layers": 2,
    "model.hidden_size": 128,
    "model.ffn_hidden_size": 256,
    "model.vocab_size": 256,
    "model.num_attention_heads": 4,
    "model.global_batch_size": 8,
    "model.rampup_batch_size": "[4,4,20]",
    "rampup.at_boundary": "continue",
    "rampup.node_policy": "fixed",
    "trainer.num_nodes": 1,
    "trainer.devices": 1,
    "trainer.accelerator": "cpu",
    "trainer.precision": "fp32",
    "trainer.max_steps": 10,
    "trainer.val_samples": 0,
    "optim.lr": 0.003,
    "optim.min_lr": 0.0003,
    "optim.warmup_steps": 2,
    **dict.fromkeys(
        (
            f"parallel.{axis}_parallel_size"
            for axis in ("tensor", "pipeline", "virtual_pipeline", "context")
        ),
        1,
    ),
}
RECIPES = {
    "llama3_8b": {"model.num_query_groups": 2},
    "qwen3_0p6b": {"model.num_query_groups": 2, "model.head_size": 48, "optim.optimizer": "muon"},
    "gpt3_5b": {},
}


def train(recipe: str) -> list[dict]:
    """Returns the rows of a recipe's golden."""
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory(Path(folder))
        settings = SMALL | RECIPES[recipe] | {"run_dir": folder}
        words = [f"{key}={value}" for key, value in settings.items()]
        write_run_files(run, resolve(apply_overrides(llm.from_factory(recipe), words)), [])
        run_ranks(1, train_rank, folder, logs=run.logs)
        return [
            {
                key: row[key]
                for key in ("step", "global_batch_size", "loss", "grad_norm", "order_hash")
            }
            for row in read_rows(run.metrics)
        ]


if __name__ == "__main__":
    tables = (  # a line for each step
        f' "{recipe}": [\n' + ",\n".join(f"  {json.dumps(row)}" for row in train(recipe)) + "\n ]"
        for recipe in RECIPES
    )
    FILE.write_text("{\n" + ",\n".join(tables) + "\n}\n", encoding="utf-8")
