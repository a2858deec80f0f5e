"""The process groups of a rank's meshes."""

import torch
import torch.distributed as dist

from rampcli.parallel.mesh import Meshes, build_meshes
from rampcli.settings.parallel import ParallelConfig
from ranks import joined


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
