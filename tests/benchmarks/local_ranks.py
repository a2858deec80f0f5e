"""Starts the ranks of a benchmark on this machine."""

import os
import subprocess
import sys

from rampcli.launch.workers import reserve_port


def run_ranks(script: str, count: int, *arguments: str, **environment: str) -> None:
    """Runs a script in `count` processes, as ranks that find each other, and waits for them.

    Exits if one of them fails.

    Args:
        arguments: of the script.
        environment: further variables of the processes.
    """
    with reserve_port() as reserved:
        place = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(reserved.getsockname()[1]),
            "WORLD_SIZE": str(count),
            "OMP_NUM_THREADS": "1",
            **environment,
        }
        ranks = [
            subprocess.Popen(
                [sys.executable, script, *arguments],
                env={**os.environ, **place, "RANK": str(rank)},
            )
            for rank in range(count)
        ]
        failed = [rank.wait() for rank in ranks]
    if any(failed):
        raise SystemExit(1)
