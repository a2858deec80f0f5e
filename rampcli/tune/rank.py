"""One rank of a trial: `python -m rampcli.tune.rank FOLDER [--wait]`.

FOLDER is the run directory of the trial. Its trial.json says what to time. Rank 0 writes the times
to result.json. On SIGUSR2, each rank writes what it is doing to stack_RANK.txt.
"""

import faulthandler
import gc
import os
import sys
import time
from pathlib import Path

from rampcli.files.locks import SHARE_WAIT_S, hold
from rampcli.machine.lifeline import WAIT
from rampcli.runs.worker_defaults import set_defaults
from rampcli.train.stopping import StopRequest
from rampcli.tune.trial_files import STACK_SIGNAL, TrialDirectory
from rampcli.worker.starters import rank_of


def main() -> None:
    """Times the steps of a trial, and exits with a code of `rampcli.errors`."""
    trial = TrialDirectory(Path(sys.argv[1]))
    stack = trial.open_to_append(trial.stack(rank_of(os.environ)))
    faulthandler.register(STACK_SIGNAL, file=stack, all_threads=True)
    stop = StopRequest(exits_at_second_signal=True)
    stop.listen()
    started = time.time()
    set_defaults(trial, rank=rank_of(os.environ))
    with hold(trial.workers_lock, shared=True, wait_s=SHARE_WAIT_S):
        # Importing torch takes seconds, in which a signal may come.
        from rampcli.tune.measure import measure
        from rampcli.worker.leave import leave_after

        if WAIT in sys.argv and not sys.stdin.readline():
            sys.exit(0)  # the supervisor has gone
        gc.freeze()  # imported modules live until the end, so the collector need not scan them
        leave_after(trial, lambda: measure(trial, stop, started=started))


if __name__ == "__main__":
    main()
