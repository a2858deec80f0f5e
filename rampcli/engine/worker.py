"""One rank of a run: `python -m rampcli.engine.worker RUN_DIR` under torchrun, mpirun or srun, or alone."""

import os
import sys
import time
from pathlib import Path

from rampcli.engine.stopping import StopRequest
from rampcli.lifeline import SUPERVISOR, die_with_parent, is_orphan
from rampcli.locks import hold
from rampcli.run_directory import RunDirectory

LOCK_S = 60.0
STARTED = time.time()


def main() -> None:
    """Train, and leave with an exit code of `rampcli.errors`."""
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "config.yaml").is_file():
        sys.exit("usage: python -m rampcli.engine.worker RUN_DIR, a folder whose config.yaml says what to train")
    if "TORCHELASTIC_RUN_ID" in os.environ:  # an agent's worker: without its agent nobody would end it
        die_with_parent()
        if is_orphan():
            sys.exit(1)
    # A signal to a run comes to its workers on several ways: from the supervisor, from torchrun, and from Slurm to all that it knows.
    stop = StopRequest(a_second_signal_ends=SUPERVISOR not in os.environ)
    stop.listen()
    run = RunDirectory(Path(sys.argv[1]))
    lock = hold(run.workers_lock, shared=True, wait_s=LOCK_S)  # who supervises waits for it for a moment, before it starts workers
    from rampcli.engine.training import train_and_leave  # here, because torch takes seconds, in which a signal may come

    train_and_leave(run, stop, started=STARTED, lock=lock)


if __name__ == "__main__":
    main()
