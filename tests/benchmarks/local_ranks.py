"""Starts the ranks of a benchmark on this machine."""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Mapping

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


def measure_cases(
    script: str,
    doc: str | None,
    measure: Callable[[str, int], None],
    ranks: Mapping[str, int],
    *,
    rounds: int,
    header: str,
) -> None:
    """Runs a script whose argument is a count of rounds, for each case on ranks of its own.

    Args:
        doc: its docstring.
        measure: takes a case and the rounds, in a process that is a rank.
        ranks: of each case.
        rounds: the default.
        header: printed above the rows of the cases.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("rounds", nargs="?", type=int, default=rounds, metavar="ROUNDS")
    rounds = parser.parse_args().rounds
    if "RANK" in os.environ:
        measure(os.environ["BENCH_CASE"], rounds)
        sys.stdout.flush()
        os._exit(0)  # exit handlers abort with FSDP2 on gloo
    print(header, flush=True)
    for case, count in ranks.items():
        run_ranks(script, count, str(rounds), BENCH_CASE=case)
