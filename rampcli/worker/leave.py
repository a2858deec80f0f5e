"""How a worker ends: recording a failure, and leaving the process."""

import gc
import os
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import NoReturn

import torch.distributed as dist

from rampcli.errors import RampcliError
from rampcli.files.locks import hold
from rampcli.parallel.mesh import world_timeout
from rampcli.runs.directory import RunDirectory, last_line

CAUSE_FIRST_S = 1.0
"""Time that a rank with an unforeseen error waits before it exits.

The error may follow from the loss of another rank, for example a killed one. srun ends all ranks
once one has failed, so the lost rank must be reported first.
"""
PAIR_CLOSED = "Application timeout caused pair closure"
"""What gloo says of a collective that ends because another one of its group has timed out.

A rank may wait for that one only, for example while FSDP gathers weights ahead.
"""
LOCK_S = 10.0
"""Time that a rank waits while another one records its error."""


class RankLost(Exception):
    """Raised on a rank that cannot go on because another one has ended."""


def leave_after(run: RunDirectory, work: Callable[[], int]) -> NoReturn:
    """Does this rank's work, and ends the process with the exit code that it returns.

    An error of `rampcli.errors` is recorded in state.json and gives its exit code; any other gives
    1 and a traceback in the log. A rank that has joined others waits for them.
    """
    try:
        code = work()
    except RampcliError as error:
        print(error, file=sys.stderr)  # noqa: T201
        record_failure_alone(run, error)
        leave(error.exit_code)
    except Exception as error:  # a bug
        traceback.print_exc()
        if PAIR_CLOSED in str(error):
            # Nobody asks the other collective for its error, which would say how long it waited.
            waited_ms = world_timeout() // timedelta(milliseconds=1)
            print(f"Timed out waiting {waited_ms}ms for other ranks", file=sys.stderr)  # noqa: T201
        print(RampcliError(last_line(error)), file=sys.stderr)  # noqa: T201
        record_failure_alone(run, error)
        if isinstance(error, RankLost) or (dist.is_initialized() and dist.get_world_size() > 1):
            time.sleep(CAUSE_FIRST_S)
        leave(1)
    gc.collect()
    if dist.is_initialized():
        try:
            dist.barrier()
            dist.destroy_process_group()
        except Exception:  # another rank has failed, and has recorded why
            traceback.print_exc()
            leave(1)
    leave(code)


def record_failure_alone(run: RunDirectory, error: Exception) -> None:
    """Records an error as `RunDirectory.record_failure` does, while no other rank records one."""
    try:
        # The lock is on a file that exists, because a full disk may be why ranks fail.
        with hold(run.config, wait_s=LOCK_S):
            run.record_failure(error)
    except (RampcliError, OSError) as another:  # state.json may be damaged, or the disk full
        print(another, file=sys.stderr)  # noqa: T201


def leave(code: int) -> NoReturn:
    """Ends the process without exit handlers, because FSDP2 on gloo may abort in them."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
