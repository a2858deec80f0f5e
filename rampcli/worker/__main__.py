"""One rank of a run: `python -m rampcli.worker RUN_DIR`, alone or under torchrun, mpirun or srun.

With `--wait`, the worker imports what it needs and then waits on standard input for its turn.
Supervisors start workers in this way.
"""

import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from select import select

from rampcli.errors import RampcliError
from rampcli.files.locks import SHARE_WAIT_S, hold, is_held
from rampcli.machine.activity import LOADING, begin
from rampcli.machine.lifeline import SUPERVISOR, WAIT, die_with_parent
from rampcli.runs.directory import RunDirectory
from rampcli.runs.worker_defaults import set_defaults
from rampcli.train.stopping import StopRequest
from rampcli.worker.heartbeat import Heartbeat
from rampcli.worker.starters import rank_of, world_size_of

STARTED = time.time()


def import_training() -> Callable[..., int]:
    """Imports torch and all that training needs, and returns the function that trains."""
    from rampcli.worker.assemble import train

    return train


def main(
    import_training: Callable[[], Callable[..., int]] = import_training,
    *,
    program: str = "rampcli.worker",
) -> None:
    """Trains, and ends this process with an exit code of `rampcli.errors`.

    Args:
        import_training: imports and returns the function that trains, which returns the exit code.
            Its arguments are the run directory, the stop request, and `started`: when this process
            ran its first line, or was told to train if it waited, in seconds since 1970.
        program: module that runs as this program.
    """
    if (
        not 2 <= len(sys.argv) <= 3
        or sys.argv[2:] not in ([], [WAIT])
        or not (Path(sys.argv[1]) / "config.yaml").is_file()
    ):
        sys.exit(
            f"usage: python -m {program} RUN_DIR [{WAIT}]\n"
            "RUN_DIR is a run directory, whose config.yaml says what to train"
        )
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun may be killed without ending its workers
        die_with_parent()
    # A worker may get the same signal from its supervisor, from torchrun and from the cluster.
    stop = StopRequest(exits_at_second_signal=SUPERVISOR not in os.environ)
    stop.listen()
    run = RunDirectory(Path(sys.argv[1]))
    started = STARTED
    try:
        set_defaults(run, rank=rank_of(os.environ))
        if WAIT in sys.argv:
            started = max(STARTED, wait_for_turn(run, import_training))
        # A supervisor holds the lock for an instant before it starts workers.
        lock = hold(run.workers_lock, shared=True, wait_s=SHARE_WAIT_S)
    except RampcliError as error:
        print(error, file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)
    # Importing torch takes seconds, during which a signal may come: imported after `listen`.
    train = import_training()
    from rampcli.worker.leave import leave_after

    gc.freeze()  # imported modules live until the end, so the collector need not scan them

    def work() -> int:
        begin(LOADING)
        rank, world_size = int(rank_of(os.environ)), int(world_size_of(os.environ))
        with Heartbeat(run, rank=rank, world_size=world_size):
            return train(run, stop, started=started)

    with lock:  # it shows that this worker lives, and ends with the process
        leave_after(run, work)


def wait_for_turn(run: RunDirectory, import_training: Callable[[], object]) -> float:
    """Imports what training needs and waits for a line on standard input.

    The line holds the time at which it was written, in seconds since 1970, which is returned. If
    standard input ends without one, the supervisor no longer needs this worker, and the process
    exits.
    """
    import_training()
    has_turn = bool(select([sys.stdin], [], [], 0)[0])
    if not has_turn and is_held(run.workers_lock):  # the processes of the stage before still train
        from rampcli.worker.assemble import compile_next_stage

        compile_next_stage(run, world_size=int(world_size_of(os.environ)))
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return float(line)


if __name__ == "__main__":
    main()
