import pytest

from distributed.gradients import gradient
from ranks import run_ranks


def test_ranks_with_different_numbers_of_valid_tokens_have_the_gradient_of_the_whole_batch(
    tmp_path,
):
    """A mean per rank or micro batch would weigh samples with few valid tokens too much."""

    def step(ranks: int, micro_batch_size: int, reduce: str = "last") -> dict:
        return run_ranks(ranks, gradient, micro_batch_size, reduce, logs=tmp_path)[0]

    alone = step(ranks=1, micro_batch_size=8)
    for micro_batch_size, reduce in ((1, "last"), (1, "each"), (4, "last")):
        split = step(ranks=2, micro_batch_size=micro_batch_size, reduce=reduce)
        assert split["loss"] == pytest.approx(alone["loss"], abs=1e-6)
        assert split["grad_norm"] == pytest.approx(alone["grad_norm"], rel=1e-5)
        assert split["gradients"] == pytest.approx(alone["gradients"], rel=1e-5)
