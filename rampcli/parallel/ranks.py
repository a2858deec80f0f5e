"""The device of this rank and its memory, and small values that ranks exchange."""

import json
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from rampcli.errors import UsageError, reason_of
from rampcli.machine.activity import waiting
from rampcli.machine.host import peak_resident_bytes, processors_near
from rampcli.settings.trainer import Accelerator, TrainerConfig

CPU = "CPU"
MAX_GATHERED_BYTES = 4096
FEWEST_PROCESSORS = 2
"""A rank is bound to at least this many: one queues kernels, others read samples and save."""
ALLOCATION_FAILED = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "Storage size calculation overflowed",
    "_ALLOC_FAILED",  # cuBLAS, cuSOLVER and cuDNN 8
    "_ALLOCATION_FAILED",  # cuDNN 9
    "Failed to CUDA",  # NCCL
    "Failed to malloc",  # NCCL
)
"""Fragments of the RuntimeErrors that torch raises if it cannot allocate memory.

Libraries besides torch allocate on a GPU too, and torch passes their words on.
"""
T = TypeVar("T")


def device_here(accelerator: Accelerator) -> torch.device:
    """Returns the device of this process: the GPU of its local rank, or the CPU.

    Raises:
        UsageError: the run needs a GPU and torch sees none, or this host has more ranks than GPUs.
    """
    if accelerator != "cpu" and torch.cuda.is_available():
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        return torch.device("cuda", gpu_of(local_rank, gpus=torch.cuda.device_count()))
    if accelerator == "gpu":
        host = socket.gethostname()
        raise UsageError(
            f"trainer.accelerator=gpu, but torch sees no GPU on {host}",
            keys=(TrainerConfig.accelerator,),
            remedy=f"`rampcli doctor` on {host}, or trainer.accelerator=cpu",
        )
    return torch.device("cpu")


def gpu_of(local_rank: int, *, gpus: int) -> int:
    """Returns the number of the GPU of a process among those that it sees.

    A process that sees a single GPU uses it: srun may show each process only its own.
    `check_devices` finds ranks that share one.

    Raises:
        UsageError: there are fewer GPUs than ranks on this host.
    """
    if gpus > 1 and local_rank >= gpus:
        raise UsageError(
            f"the process with local rank {local_rank} has no GPU: torch sees {gpus} on"
            f" {socket.gethostname()}",
            keys=(TrainerConfig.devices,),
            remedy=f"trainer.devices={gpus}, or more GPUs per node",
        )
    return local_rank if gpus > 1 else 0


def name_of(device: torch.device) -> str:
    """Returns what tells devices of a host apart: the UUID of a GPU, or `CPU`."""
    return CPU if device.type == "cpu" else str(torch.cuda.get_device_properties(device).uuid)


def check_devices(places: Sequence[tuple[str, str]]) -> None:
    """Checks that all ranks compute on the CPU, or each on a GPU of its own.

    Args:
        places: host of each rank, and `name_of` its device.

    Raises:
        UsageError: some ranks have no GPU and others have one, or ranks share a GPU.
    """
    on_cpu = [rank for rank, (_, device) in enumerate(places) if device == CPU]
    if 0 < len(on_cpu) < len(places):
        raise UsageError(
            f"torch sees no GPU for rank {on_cpu[0]} on {places[on_cpu[0]][0]}, and the others have"
            " GPUs",
            keys=(TrainerConfig.accelerator,),
            remedy=f"`rampcli doctor` on {places[on_cpu[0]][0]}, or trainer.accelerator=cpu",
        )
    users: dict[tuple[str, str], int] = {}
    for rank, place in enumerate(() if on_cpu else places):
        if (first := users.setdefault(place, rank)) != rank:
            raise UsageError(
                f"ranks {first} and {rank} on {place[0]} have the same GPU ({place[1]})",
                keys=(TrainerConfig.devices,),
                remedy="one process per GPU, for example with srun --gpus-per-task=1",
            )


def use_device(device: torch.device) -> None:
    """Makes a GPU the current device of this thread; does nothing for the CPU.

    In a new thread, GPU 0 is the current one: work there would take memory of GPU 0 for each rank.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)


def take_device(trainer: TrainerConfig) -> torch.device:
    """Returns the device of this process, and lets the process use it and run near it.

    Raises:
        UsageError: as of `device_here`.
    """
    device = device_here(trainer.accelerator)
    use_device(device)
    if trainer.numa_binding:
        bind_to_processors_near(device)
    return device


def bind_to_processors_near(device: torch.device) -> None:
    """Lets this process run only on processors of its GPU's NUMA node, of those that it may use.

    Does nothing for the CPU, or if they are fewer than `FEWEST_PROCESSORS` or than the process has
    OpenMP threads.
    """
    if device.type != "cuda":
        return
    gpu: Any = torch.cuda.get_device_properties(device)  # torch's types lack its place
    address = f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0"
    near = processors_near(address) & os.sched_getaffinity(0)
    if len(near) >= max(FEWEST_PROCESSORS, torch.get_num_threads()):
        for thread in os.listdir("/proc/self/task"):
            with suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(int(thread), near)


def peak_bytes(device: torch.device) -> int | None:
    """Returns the most memory that this process has held so far, or None if it is unknown.

    On a GPU, this is what torch has reserved there; on the CPU, the resident memory of the process.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    return peak_resident_bytes()


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error, or an error that it follows from, is a failed allocation."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError | torch.OutOfMemoryError):
            return True
        if isinstance(cause, RuntimeError) and any(
            fragment in str(cause) for fragment in ALLOCATION_FAILED
        ):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def broadcast_from_rank_0(number: int) -> int:
    """Returns rank 0's number. Every rank calls this; other ranks' numbers are ignored."""
    shared = torch.tensor(int(number), device=_device_of(None))
    with waiting:
        dist.broadcast(shared, src=0)
    return int(shared.item())


def gather_from_all_ranks(
    facts: dict[str, Any], group: dist.ProcessGroup | None = None
) -> list[dict[str, Any]]:
    """Returns the facts of every rank of a group, in the order of ranks. Every rank calls this.

    Args:
        facts: this rank's facts, of at most `MAX_GATHERED_BYTES` as JSON.
        group: the group; all ranks, if None.
    """
    mine = torch.tensor(
        list(json.dumps(facts).encode().ljust(MAX_GATHERED_BYTES)),
        dtype=torch.uint8,
        device=_device_of(group),
    )
    return [json.loads(bytes(each.tolist())) for each in gather_tensors(mine, group)]


def gather_tensors(mine: Tensor, group: dist.ProcessGroup | None = None) -> list[Tensor]:
    """Returns the tensors of every rank of a group, in the order of ranks. Every rank calls this.

    Args:
        mine: this rank's tensor. All have the same shape.
        group: the group; all ranks, if None.
    """
    gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    with waiting:
        dist.all_gather(gathered, mine, group=group)
    return gathered


class RankError(Exception):
    """The reasons of all ranks on which some work failed."""


def on_all_ranks(
    work: Callable[[], T],
    *,
    group: dist.ProcessGroup | None = None,
    errors: tuple[type[Exception], ...] = (Exception,),
) -> T:
    """Runs `work` on every rank and returns this rank's result. Every rank calls this.

    Args:
        group: the ranks; all of them, if None.
        errors: failures that the other ranks learn of.

    Raises:
        RankError: `work` failed on a rank. Every rank raises it.
    """
    reason, cause = None, None
    try:
        result = work()
    except errors as error:
        reason, cause = reason_of(error), error
    found = {each["reason"] for each in gather_from_all_ranks({"reason": reason}, group)}
    if reasons := found - {None}:
        raise RankError("; ".join(sorted(reasons))) from cause
    return result


def _device_of(group: dist.ProcessGroup | None) -> torch.device:
    if dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
