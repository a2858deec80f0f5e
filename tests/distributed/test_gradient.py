import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("gradient_of_two_ranks.py")


def step(ranks: int, micro_batch_size: int) -> dict:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1]), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(micro_batch_size)],
            env={**os.environ, **group, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    outputs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0] * ranks, outputs
    return json.loads(outputs[0][0])


def test_ranks_with_different_numbers_of_valid_tokens_follow_the_gradient_of_the_whole_batch():
    """Averaging per rank or per micro batch first would weigh the samples with few valid tokens too much."""
    whole = step(ranks=1, micro_batch_size=8)
    for micro_batch_size in (1, 4):
        split = step(ranks=2, micro_batch_size=micro_batch_size)
        assert split["loss"] == pytest.approx(whole["loss"], abs=1e-6)
        assert split["grad_norm"] == pytest.approx(whole["grad_norm"], rel=1e-5)
        assert split["weights"] == pytest.approx(whole["weights"], rel=1e-5)
