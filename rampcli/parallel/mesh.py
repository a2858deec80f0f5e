"""The mesh of ranks."""

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

DATA = "data"


def build_mesh(device: torch.device, *, data_parallel_size: int) -> DeviceMesh:
    """All ranks along the data-parallel axis."""
    return init_device_mesh(device.type, (data_parallel_size,), mesh_dim_names=(DATA,))
