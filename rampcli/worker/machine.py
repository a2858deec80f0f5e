"""Tests Python and torch on this machine for `rampcli doctor`: `python -m rampcli.worker.machine`.

Prints JSON objects, one per line, whose keys together are the answer. If one test crashes or hangs,
the results of the tests before it are already printed.
"""

import json
import os
import socket
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rampcli.machine.lifeline import die_with

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

TIMEOUT = timedelta(seconds=15)
REDUCED_NUMBERS = 1000


def main() -> None:
    """Prints the versions of Python, torch and CUDA, and whether gloo, GPUs and NCCL work."""
    _report(python=sys.version_info[:3])
    try:
        import torch  # here, so that a torch that fails to import is reported

        _report(torch=torch.__version__, cuda=torch.version.cuda)
        _try_backends()
    except (Exception, SystemExit) as error:  # a broken extension of torch may raise anything
        _report(error=_describe(error))
    sys.stdout.flush()
    os._exit(0)  # what torch does at exit is not tested


def _try_backends() -> None:
    """Tests gloo and NCCL with two processes, this one and a fork, whose output is discarded."""
    import torch.distributed as dist

    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    rank, parent = 0, os.getpid()
    if os.fork() == 0:  # before GPUs are used: CUDA does not survive a fork
        die_with(parent)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        listener.close()
        rank = 1
    # The open socket is handed over, so that no other process can take the port in between.
    descriptor = None if rank else listener.detach()
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", port, 2, is_master=rank == 0, timeout=TIMEOUT, master_listen_fd=descriptor
    )
    _report(gloo=_try_all_reduce("gloo", store, rank=rank, size=2))
    gpus, cuda_error = _gpus()
    _report(gpus=gpus, cuda_error=cuda_error)
    _report(nccl=_try_all_reduce("nccl", store, rank=rank, size=min(2, len(gpus))))


def _report(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)  # noqa: T201


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _gpus() -> tuple[list[dict[str, Any]], str | None]:
    """Returns the GPUs that torch can use, and the error if CUDA does not start."""
    import torch

    try:
        if torch.version.cuda is not None:
            torch.cuda.init()  # type: ignore[no-untyped-call]
        properties = [
            torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())
        ]
    except Exception as error:
        return [], _describe(error)
    return [{"name": found.name, "memory_bytes": found.total_memory} for found in properties], None


def _try_all_reduce(backend: str, store: "Store", *, rank: int, size: int) -> dict[str, Any]:
    """Runs an all-reduce over `size` processes. Returns their number and its error, or None."""
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
        if device.type == "cuda":
            torch.cuda.set_device(device)  # before NCCL, as the workers do
        dist.init_process_group(
            backend, store=PrefixStore(backend, store), rank=rank, world_size=size, timeout=TIMEOUT
        )
        tensor = torch.full((REDUCED_NUMBERS,), rank + 1, device=device)
        dist.all_reduce(tensor)
        if tensor.sum().item() != REDUCED_NUMBERS * size * (size + 1) // 2:
            answer["error"] = f"an all-reduce over {size} processes gave a wrong sum"
        dist.destroy_process_group()
    except Exception as error:
        answer["error"] = _describe(error)
    return answer


if __name__ == "__main__":
    main()
