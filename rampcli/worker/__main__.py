"""One rank of a run: `python -m rampcli.worker RUN_DIR` under torchrun, mpirun or srun, or alone.

With `--wait` it imports what it needs, and then waits on standard input for its turn; a supervisor starts workers so.
"""

import os
import sys
import time
from pathlib import Path

from rampcli.errors import RampcliError
from rampcli.lifeline import SUPERVISOR, WAIT, die_with_parent
from rampcli.locks import hold
from rampcli.run_directory import RunDirectory
from rampcli.train.stopping import StopRequest

LOCK_S = 60.0
STARTED = time.time()


def main() -> None:
    """Train, and leave with an exit code of `rampcli.errors`."""
    if (
        not 2 <= len(sys.argv) <= 3
        or sys.argv[2:] not in ([], [WAIT])
        or not (Path(sys.argv[1]) / "config.yaml").is_file()
    ):
        sys.exit(
            f"usage: python -m rampcli.worker RUN_DIR [{WAIT}], a folder whose config.yaml says what to train"
        )
    if (
        "TORCHELASTIC_RUN_ID" in os.environ
    ):  # nobody would end this process if torchrun, which started it, were killed
        die_with_parent()
    # A signal to a run comes to its workers on several ways: from the supervisor, from torchrun, and from Slurm to all that it knows.
    stop = StopRequest(a_second_signal_ends=SUPERVISOR not in os.environ)
    stop.listen()
    run = RunDirectory(Path(sys.argv[1]))
    started = max(STARTED, wait_for_turn(run)) if WAIT in sys.argv else STARTED
    try:
        lock = hold(
            run.workers_lock, shared=True, wait_s=LOCK_S
        )  # a supervisor takes it for an instant, before it starts workers
    except RampcliError as error:
        print(error, file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)
    from rampcli.worker.assemble import (
        train_and_leave,
    )  # here, because torch takes seconds, in which a signal may come

    train_and_leave(run, stop, started=started, lock=lock)


def wait_for_turn(run: RunDirectory) -> float:
    """Have ready what a run needs, and wait for a line with the time at which it was written, in seconds since 1970; returns that.

    Where none comes, nobody wants this process any more, and it ends.
    """
    import rampcli.worker.assemble  # noqa: F401
    from rampcli.config import snapshot

    if snapshot.read(run.config).trainer.compile:
        from rampcli.train.compiling import set_up_compiler

        set_up_compiler()
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return float(line)


if __name__ == "__main__":
    main()
