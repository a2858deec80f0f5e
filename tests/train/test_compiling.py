import json
import subprocess
import sys
from pathlib import Path

from tiny_runs import environment

WORDS = (
    "trainer.compile=true",
    "trainer.compile=true trainer.precision=bf16 data.document_mask=true",  # sharded
    "trainer.compile=true trainer.activation_checkpointing=selective",
    "trainer.compile=true trainer.matmul_precision=medium",
)


def test_a_model_finds_a_layer_that_was_compiled_ahead():
    # In a process of its own, which forms process groups one after the other.
    program = Path(__file__).with_name("compiled_ahead.py")
    counted = subprocess.run(
        [sys.executable, program, *WORDS],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    # A layer has one graph for training and one for validation.
    assert json.loads(counted.stdout) == [[2, 0]] * len(WORDS)
