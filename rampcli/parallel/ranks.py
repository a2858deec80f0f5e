"""Collective helpers: which device a rank computes on, and values that ranks exchange."""

import json
import os
from typing import Any

import torch
import torch.distributed as dist

from rampcli.config.choices import Accelerator
from rampcli.errors import UsageError

MOST_SAID_BYTES = 4096


def device_here(accelerator: Accelerator) -> torch.device:
    """Where this process computes; on a host with several GPUs, that of its local rank.

    Raises:
        UsageError: a GPU is wanted and there is none.
    """
    if accelerator is not Accelerator.cpu and torch.cuda.is_available():
        # srun may have shown each process its own GPU alone, which is the first that it sees then.
        return torch.device(
            "cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
        )
    if accelerator is Accelerator.gpu:
        raise UsageError(
            "trainer.accelerator=gpu, but torch sees no GPU here", keys=("trainer.accelerator",)
        )
    return torch.device("cpu")


def from_rank_0(number: int) -> int:
    """What rank 0 says; every rank asks."""
    shared = torch.tensor(int(number), device=_device_of(None))
    dist.broadcast(shared, src=0)
    return int(shared.item())


def from_all_ranks(
    words: dict[str, Any], group: dist.ProcessGroup | None = None
) -> list[dict[str, Any]]:
    """What each rank of a group says, in words that JSON knows and that take up to `MOST_SAID_BYTES` of it; every rank asks."""
    mine = torch.tensor(
        list(json.dumps(words).encode().ljust(MOST_SAID_BYTES)),
        dtype=torch.uint8,
        device=_device_of(group),
    )
    said = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(said, mine, group=group)
    return [json.loads(bytes(each.tolist())) for each in said]


def _device_of(group: dist.ProcessGroup | None) -> torch.device:
    """Where the tensors are that a group exchanges."""
    return (
        torch.device("cuda", torch.cuda.current_device())
        if dist.get_backend(group) == "nccl"
        else torch.device("cpu")
    )
