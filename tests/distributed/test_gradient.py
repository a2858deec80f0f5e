import pytest

from distributed.gradients import gradient
from ranks import run_ranks


def test_ranks_with_different_numbers_of_valid_tokens_have_the_gradient_of_the_whole_batch(
    tmp_path,
):
    """A mean per rank or micro batch would weigh samples with few valid tokens too much."""

    def step(ranks: int, micro_batch_size: int, *options) -> dict:
        return run_ranks(ranks, gradient, micro_batch_size, *options, logs=tmp_path)[0]

    alone = step(1, 8, "last")
    replicas = ((1, "last", 1), (1, "each", 1))
    for micro_batch_size, *options in ((1, "last"), (1, "each"), (4, "last"), *replicas):
        split = step(2, micro_batch_size, *options)
        assert split["loss"] == pytest.approx(alone["loss"], abs=1e-6)
        assert split["grad_norm"] == pytest.approx(alone["grad_norm"], rel=1e-5)
        assert split["gradients"] == pytest.approx(alone["gradients"], rel=1e-5)


@pytest.mark.parametrize(("ranks", "shard_size"), [(2, 2), (2, 1), (4, 2)])
@pytest.mark.parametrize("reduce", ["last", "each"])
def test_a_step_sends_the_bytes_of_gradients_that_a_plan_counts(
    reduce, ranks, shard_size, tmp_path
):
    for rank in run_ranks(ranks, gradient, 1, reduce, shard_size, logs=tmp_path):
        assert rank["sent_bytes"] == rank["counted_bytes"] > 0


@pytest.mark.parametrize("reduce", ["last", "each"])
def test_replicas_all_reduce_once_per_step(reduce, tmp_path):
    """Four micro batches of each rank, two layers, the embedding and the head."""
    for rank in run_ranks(2, gradient, 1, reduce, 1, logs=tmp_path):
        assert rank["all_reduces"] == 4
