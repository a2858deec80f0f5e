"""What Python and torch are on this machine, and whether they work: `python -m rampcli.worker.machine`, for `rampcli doctor`.

It prints JSON objects, one on a line, whose keys add up to the answer: where one part crashes or hangs, the parts before it have been said.
"""

import json
import os
import socket
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rampcli.lifeline import die_with

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

PATIENCE = timedelta(seconds=15)
NUMBERS = 1000


def main() -> None:
    """Say `python`, `torch` and `cuda` (versions), `gloo`, `gpus` and `cuda_error`, `nccl`; or `error`, where torch raises one."""
    _say(python=sys.version_info[:3])
    try:
        import torch  # here, so that one that is broken can be told from one that is not there

        _say(torch=torch.__version__, cuda=torch.version.cuda)
        _try_groups()
    except (
        Exception,
        SystemExit,
    ) as error:  # an extension of torch that is broken may raise anything
        _say(error=_words(error))
    sys.stdout.flush()
    os._exit(0)  # what torch does when an interpreter ends is no part of the question


def _try_groups() -> None:
    """Two processes, on the same path until the end. The second prints to nobody."""
    import torch.distributed as dist

    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    rank, first = 0, os.getpid()
    if (
        os.fork() == 0
    ):  # before anything asks for GPUs: what CUDA has set up does not survive a fork
        die_with(first)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        listener.close()
        rank = 1
    taken_over = None if rank else listener.detach()  # so that nobody else gets the port in between
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", port, 2, is_master=rank == 0, timeout=PATIENCE, master_listen_fd=taken_over
    )
    _say(gloo=_sum_up("gloo", store, rank=rank, size=2))
    gpus, cuda_error = _gpus()
    _say(gpus=gpus, cuda_error=cuda_error)
    _say(nccl=_sum_up("nccl", store, rank=rank, size=min(2, len(gpus))))


def _say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)  # noqa: T201


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _gpus() -> tuple[list[dict[str, Any]], str | None]:
    """Names and memory of the GPUs that torch can use; and why it can use none, where it was built for them."""
    import torch

    try:
        if torch.version.cuda is not None:
            torch.cuda.init()  # type: ignore[no-untyped-call]
        properties = [
            torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())
        ]
    except Exception as error:
        return [], _words(error)
    return [{"name": found.name, "memory_bytes": found.total_memory} for found in properties], None


def _sum_up(backend: str, store: "Store", *, rank: int, size: int) -> dict[str, Any]:
    """Let a group of processes on this machine add up a tensor; says what went wrong, or that nothing did."""
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore

    answer: dict[str, Any] = {"processes": size, "error": None}
    if rank >= size:
        return answer
    if not dist.is_backend_available(backend):
        return answer | {"error": f"torch was built without {backend}"}
    try:
        device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
        dist.init_process_group(
            backend, store=PrefixStore(backend, store), rank=rank, world_size=size, timeout=PATIENCE
        )
        tensor = torch.full((NUMBERS,), rank + 1, device=device)
        dist.all_reduce(tensor)
        if tensor.sum().item() != NUMBERS * size * (size + 1) // 2:
            answer["error"] = f"{size} processes added up a tensor wrongly"
        dist.destroy_process_group()
    except Exception as error:
        answer["error"] = _words(error)
    return answer


if __name__ == "__main__":
    main()
