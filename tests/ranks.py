"""Real ranks for tests: processes that are forked from one that has loaded torch, and so start in no time."""

import multiprocessing
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from rampcli.launch.workers import reserve_port

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["rampcli.worker.assemble"])


def run_ranks(
    processes: int, program: str, *arguments: str, logs: Path, folders: Sequence[Path] | None = None
) -> str:
    """Run a module, or a file, as every rank of a group, to the end, each in its folder if there are any; what rank 0 printed.

    Raises:
        AssertionError: a rank failed; with what it printed.
    """
    logs.mkdir(parents=True, exist_ok=True)
    outputs = [logs / f"rank_{rank}.txt" for rank in range(processes)]
    places = folders or [Path.cwd()] * processes
    with reserve_port() as reserved:
        port = str(reserved.getsockname()[1])
        ranks = [
            FORKS.Process(
                target=_rank, args=(rank, processes, port, output, places[rank], program, arguments)
            )
            for rank, output in enumerate(outputs)
        ]
        for process in ranks:
            process.start()
        failed = False
        for process in ranks:
            process.join(
                1 if failed else 300
            )  # once one has failed, the others wait for it in vain
            failed = failed or process.exitcode != 0
        for process in ranks:
            process.kill()
    assert not failed, "\n".join(
        f"{output.name}: {output.read_text()[-3000:]}" for output in outputs
    )
    return outputs[0].read_text()


def _rank(
    rank: int,
    processes: int,
    port: str,
    output: Path,
    folder: Path,
    program: str,
    arguments: tuple[str, ...],
) -> None:
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    place = {
        "RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    os.environ.update(place, OMP_NUM_THREADS="1")
    os.chdir(folder)
    sys.argv = [program, *arguments]
    if program.endswith(".py"):
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
