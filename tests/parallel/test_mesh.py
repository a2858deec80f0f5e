import pytest

from parallel.mesh_groups import groups_of
from ranks import run_ranks


@pytest.mark.parametrize(
    ("ranks", "sizes", "groups"),
    [
        (2, {"tensor_parallel_size": 2}, [[0, 1]]),
        (4, {"data_parallel_shard_size": 2}, [[0, 1], [0, 1, 2, 3], [0, 2]]),
        (4, {"tensor_parallel_size": 2}, [[0, 1], [0, 1, 2, 3], [0, 2]]),
        (4, {"context_parallel_size": 2}, [[0, 1], [0, 1, 2, 3], [0, 2]]),
    ],
)
def test_a_rank_has_one_process_group_for_the_same_ranks(ranks, sizes, groups, tmp_path):
    """NCCL holds buffers on the GPU for each group."""
    assert run_ranks(ranks, groups_of, sizes, logs=tmp_path)[0] == groups
