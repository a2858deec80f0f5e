"""Measures speed on the ranks of `rampcli doctor --gpu`, which `rampcli.worker.speed_rank` starts.

`ORDER` in the run directory says what to measure: the speed of matrix products on each GPU, or the
speed of all-reduces over all ranks and along each axis of the mesh. Rank 0 writes `ANSWER`.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from rampcli.config import snapshot
from rampcli.errors import RampcliError
from rampcli.files.records import POSITIVE, read_json
from rampcli.launch.doctor.gpu_runs import ANSWER, ORDER
from rampcli.parallel.mesh import CONTEXT, PIPELINE, REPLICATE, SHARD, TENSOR, build_meshes
from rampcli.parallel.ranks import device_here, gather_from_all_ranks
from rampcli.runs.directory import RunDirectory
from rampcli.settings.config import Config
from rampcli.worker.join import join_ranks

ORDER_SHAPE = {"matrix?": POSITIVE, "numbers?": POSITIVE}
"""Rows of the square matrices to multiply, or numbers in the tensor to reduce."""
REPEATS = 10


def measure_speed(run: RunDirectory) -> int:
    """Measures what the order says, and returns the exit code."""
    order, config = read_json(run.path / ORDER, ORDER_SHAPE), snapshot.read(run.config)
    answer = (
        _multiply(config, order["matrix"])
        if "matrix" in order
        else _reduce(config, order["numbers"])
    )
    if dist.get_rank() == 0:
        run.write_json(run.path / ANSWER, answer)
    return 0


def _multiply(config: Config, size: int) -> dict[str, Any]:
    """Returns the speed of bf16 matrix products on each rank. The GPUs need no NCCL for it."""
    on_host = replace(config.trainer, accelerator="cpu")
    join_ranks(on_host, timeout_s=config.launch.start_timeout_s)
    device = device_here(config.trainer.accelerator)
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    best_s = _best_s(lambda: float((left @ right)[0, 0].item()))
    facts = gather_from_all_ranks({"flops_per_s": 2 * size**3 / best_s})
    return {"flops_per_s": [rank["flops_per_s"] for rank in facts]}


def _reduce(config: Config, numbers: int) -> dict[str, Any]:
    """Returns the speed of an all-reduce over all ranks, and along each axis of the mesh.

    The speed is that of each rank's link, as NCCL's own tests count it (busbw).
    """
    timeout_s = config.launch.start_timeout_s
    device = join_ranks(config.trainer, timeout_s=timeout_s)
    meshes = build_meshes(device, config.parallel, timeout=timedelta(seconds=timeout_s))
    groups = {"all": dist.group.WORLD}
    groups |= {axis: meshes.weights.get_group(axis) for axis in (PIPELINE, REPLICATE, SHARD)}
    groups |= {CONTEXT: meshes.data.get_group(CONTEXT), TENSOR: meshes.weights.get_group(TENSOR)}
    speeds = {}
    for axis, group in groups.items():
        ranks = dist.get_process_group_ranks(group)
        if len(ranks) == 1:
            continue
        print(f"all-reduce over {axis}, {len(ranks)} ranks", flush=True)  # noqa: T201
        tensor = torch.full((numbers,), dist.get_rank() + 1.0, device=device)

        def reduce(tensor: torch.Tensor = tensor, group: Any = group) -> float:
            dist.all_reduce(tensor, group=group)
            return float(tensor[-1].item())

        total, expected = reduce(), sum(ranks) + len(ranks)
        if total != expected:
            raise RampcliError(
                f"an all-reduce over the {axis} axis gave {total:g} instead of {expected}"
            )
        tensor.zero_()
        moved_bytes = 2 * (len(ranks) - 1) / len(ranks) * tensor.nbytes
        speeds[axis] = {"ranks": len(ranks), "bytes_per_s": moved_bytes / _best_s(reduce)}
    return {"all_reduce": speeds}


def _best_s(work: Callable[[], float]) -> float:
    """Returns the seconds of the fastest of `REPEATS` calls. A call returns a number of the GPU."""
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)
