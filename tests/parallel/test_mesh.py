import pytest
import torch
import torch.distributed as dist

from rampcli.parallel.mesh import Meshes, build_meshes
from rampcli.settings.parallel import ParallelConfig
from ranks import joined, run_ranks


def groups_of(sizes: dict[str, int]) -> list[list[int]]:
    """Returns the ranks of each group of at least two that this rank is in, in order."""
    with joined():
        meshes: Meshes = build_meshes(torch.device("cpu"), ParallelConfig(**sizes))
        groups = {dist.group.WORLD, *meshes.weights.get_all_groups(), *meshes.data.get_all_groups()}
        ranks = [dist.get_process_group_ranks(group) for group in groups]
        for mesh in (meshes.weights, meshes.data):  # each axis has the group of its ranks
            for axis in mesh.mesh_dim_names:
                assert (
                    dist.get_process_group_ranks(mesh[axis].get_group()) == mesh[axis].mesh.tolist()
                )
        return sorted(each for each in ranks if len(each) > 1)


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
