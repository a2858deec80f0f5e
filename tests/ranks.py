"""Ranks for tests: processes that load torch once, live on, and run one function after another."""

import faulthandler
import multiprocessing
import os
import runpy
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from rampcli.launch.workers import reserve_port

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["preloaded"])
PATIENCE_S = 300.0
REMAINING_S = 1.0
"""Seconds to wait for the other ranks once one has failed. They would wait for it forever."""
MOST_THREADS = 50
"""Threads that a rank may have after a call.

Torch's caches keep process groups, whose threads for gloo wake a hundred times per second.
"""
FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
"""Signals that end a process after a fault in torch or another library."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_living: list[tuple[BaseProcess, Connection]] = []


def run_ranks(
    processes: int,
    function: Callable[..., Any],
    *arguments: Any,
    logs: Path,
    folders: Sequence[Path] | None = None,
) -> list[Any]:
    """Calls a function on every rank of a group, and returns what each rank returned.

    The processes are those of earlier calls. If a rank fails or keeps more than `MOST_THREADS`, all
    of them are killed, and the next call starts new ones. Users train one run per process, so if a
    fault ends a rank that has served before, the function is called again in new processes, after a
    warning.

    Args:
        processes: number of ranks.
        function: importable by its name, with the variables of torchrun in its environment.
        arguments: of the function.
        logs: folder for what the ranks print, `rank_0.txt` and so on.
        folders: working directory of each rank; by default that of this process.

    Raises:
        AssertionError: a rank failed; the message holds what the ranks printed, and the exit codes
            of those that have ended.
    """
    logs.mkdir(parents=True, exist_ok=True)
    outputs = [(logs / f"rank_{rank}.txt").absolute() for rank in range(processes)]
    places = folders or [Path.cwd()] * processes
    served = len(_living)
    while len(_living) < processes:
        _living.append(_start_rank())
    ranks = _living[:processes]
    with reserve_port() as reserved:
        for rank, (_, connection) in enumerate(ranks):
            variables = {
                "RANK": str(rank),
                "WORLD_SIZE": str(processes),
                "LOCAL_RANK": "0",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(reserved.getsockname()[1]),
                "OMP_NUM_THREADS": "1",
            }
            connection.send((function, arguments, outputs[rank], places[rank], variables))
        results = _receive([connection for _, connection in ranks])
    has_failed = len(results) < processes
    if has_failed:
        for process, _ in ranks:
            process.join(0.2)  # one that a signal has ended may not be reaped yet
    ends = [process.exitcode for process, _ in ranks]
    if has_failed or any(_threads(process) > MOST_THREADS for process, _ in ranks):
        stop_ranks()
    if has_failed:
        printed = "\n".join(
            f"{output.name}, {'alive' if end is None else f'ended with {end}'}:"
            f" {output.read_text()[-3000:]}"
            for output, end in zip(outputs, ends, strict=True)
        )
        if any(end is not None and -end in FAULTS for end in ends[:served]):
            warnings.warn(
                f"a fault has ended a rank that had served before: {printed}", stacklevel=2
            )
            return run_ranks(processes, function, *arguments, logs=logs, folders=folders)
        raise AssertionError(printed)
    return [results[rank] for rank in range(processes)]


def stop_ranks() -> None:
    """Kills the ranks of earlier calls."""
    while _living:
        process, connection = _living.pop()
        process.kill()
        process.join()
        connection.close()


def train_rank(run_dir: str) -> None:
    """Trains a run as this rank, which is the whole program of a worker."""
    run_program("rampcli.worker", run_dir)


def run_program(module: str, *arguments: str) -> None:
    """Runs a module as a program in this process.

    Raises:
        SystemExit: the program ended with an exit code other than 0.
    """
    sys.argv = [module, *arguments]
    leave, os._exit = os._exit, sys.exit  # type: ignore[assignment]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code not in (0, None):
            raise
    finally:
        os._exit = leave


@contextmanager
def joined() -> Iterator[tuple[int, int]]:
    """Joins the ranks of this call over gloo; yields this rank and the number of ranks."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    yield dist.get_rank(), dist.get_world_size()
    dist.barrier()
    dist.destroy_process_group()


def build_passes(config: Any) -> Any:
    """Returns the `Passes` of a model with its initial weights, as a worker on the CPU has them."""
    # Imported here, so that other tests do not wait for it.
    import torch

    from rampcli.parallel.mesh import build_meshes
    from rampcli.train.build import build_parts
    from rampcli.train.passes import Passes

    device = torch.device("cpu")
    meshes = build_meshes(device, config.parallel)
    return Passes(config, build_parts(config, meshes, device), meshes, device)


def whole(tensor: Any) -> Any:
    """Returns a tensor with the shards of all ranks."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def start_process(target: Callable[..., object], *arguments: Any) -> BaseProcess:
    """Calls a function in a process that is forked from one that has imported `preloaded`.

    The process ends with this one.
    """
    path = os.environ.get("PYTHONPATH")
    # Python 3.11 does not tell the process that is forked where to find `preloaded`.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parent), path)))
    forkserver.ensure_running()
    if path is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = path
    process = FORKS.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def _start_rank() -> tuple[BaseProcess, Connection]:
    ours, theirs = FORKS.Pipe()
    process = start_process(_serve, theirs)
    theirs.close()
    return process, ours


def _threads(process: BaseProcess) -> int:
    return len(os.listdir(f"/proc/{process.pid}/task"))


def _receive(connections: Sequence[Connection]) -> dict[int, Any]:
    """Returns the results by rank. Those of ranks that failed or did not answer are missing."""
    results: dict[int, Any] = {}
    pending = {connection: rank for rank, connection in enumerate(connections)}
    failed = False
    while pending:
        ready = wait(pending, REMAINING_S if failed else PATIENCE_S)
        if not ready:
            break
        for connection in ready:
            rank = pending.pop(connection)
            try:
                has_returned, result = connection.recv()
            except EOFError:  # the rank was killed
                has_returned = False
            if has_returned:
                results[rank] = result
            failed = failed or not has_returned
    return results


def _serve(connection: Connection) -> None:
    """Runs functions, one after another, until the calling process ends."""
    variables = dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    with suppress(EOFError):
        while True:
            function, arguments, output, folder, place = connection.recv()
            redirect_output(output)
            os.environ.clear()
            os.environ.update(variables | place)
            os.chdir(folder)
            faulthandler.enable()  # prints where a rank was that a fault in torch has killed
            try:
                answer = (True, function(*arguments))
            except SystemExit:  # the program has printed the reason
                answer = (False, None)
            except BaseException:
                traceback.print_exc()
                answer = (False, None)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            sys.stdout.flush()
            sys.stderr.flush()
            connection.send(answer)


def redirect_output(output: Path, errors: Path | None = None) -> None:
    """Sends stdout of this process to a file, and stderr to the same file or to another one."""
    sys.stdout.flush()
    sys.stderr.flush()
    for descriptor, path in ((1, output), (2, errors)):
        if path is None:
            os.dup2(1, 2)
        else:
            with path.open("w") as file:
                os.dup2(file.fileno(), descriptor)
