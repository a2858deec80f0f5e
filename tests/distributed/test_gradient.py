import json
from pathlib import Path

import pytest

from ranks import run_ranks

PROGRAM = Path(__file__).with_name("gradient_of_two_ranks.py")


def test_ranks_with_different_numbers_of_valid_tokens_follow_the_gradient_of_the_whole_batch(
    tmp_path,
):
    """Averaging per rank or per micro batch first would weigh the samples with few valid tokens too much."""

    def step(ranks: int, micro_batch_size: int, reduce: str = "last") -> dict:
        printed = run_ranks(ranks, str(PROGRAM), str(micro_batch_size), reduce, logs=tmp_path)
        return json.loads(printed.splitlines()[-1])

    whole = step(ranks=1, micro_batch_size=8)
    for micro_batch_size, reduce in ((1, "last"), (1, "each"), (4, "last")):
        split = step(ranks=2, micro_batch_size=micro_batch_size, reduce=reduce)
        assert split["loss"] == pytest.approx(whole["loss"], abs=1e-6)
        assert split["grad_norm"] == pytest.approx(whole["grad_norm"], rel=1e-5)
        assert split["gradients"] == pytest.approx(whole["gradients"], rel=1e-5)
