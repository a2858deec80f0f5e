"""The process of one tracker: `python -m rampcli.launch.track RUN_DIR NAME`.

It logs the rows of a run until standard input ends, then the rest of them, and exits. Its output
goes to a log; if it fails, the last line says why.
"""

import os
import signal
import sys
import threading
import traceback
from functools import partial
from pathlib import Path

from rampcli.config import snapshot
from rampcli.config.rl_checks import is_rl
from rampcli.errors import RampcliError, reason_of
from rampcli.launch.trackers import CATCH_UP_S
from rampcli.lifeline import die_with_parent
from rampcli.locks import hold
from rampcli.run_directory import RunDirectory
from rampcli.tracking.follow import POLL_S, Follower
from rampcli.tracking.position import Position, read_position, save_position
from rampcli.tracking.tracker import TRACKERS


def main() -> None:
    """Logs the rows of a run. The exit code is 1 if the tracker fails."""
    die_with_parent()
    run, name = RunDirectory(Path(sys.argv[1])), sys.argv[2]
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=[ended], daemon=True).start()
    try:
        follow(run, name, ended)
    except Exception as error:
        traceback.print_exc()
        kind = "" if isinstance(error, RampcliError) else f"{type(error).__name__}: "
        print(f"{kind}{reason_of(error)}", file=sys.stderr, flush=True)  # noqa: T201
        os._exit(1)  # exit handlers of a library may print or wait


def follow(run: RunDirectory, name: str, ended: threading.Event) -> None:
    """Logs the rows of a run, those that are there and those that come until `ended` is set.

    Args:
        run: the run directory, in which the tracker has a position.
        name: name of the tracker.
        ended: set once no more rows come.

    Raises:
        RampcliError: the position or a row is damaged.
        BlockingIOError: another process logs the run to the same tracker.
    """
    with hold(run.trackers / f"{name}.lock", wait_s=CATCH_UP_S):
        config = snapshot.read(run.config)
        position = read_position(run, name) or Position()
        tracker = TRACKERS[name].open(run, position, config.name)
        tracker.log_config(snapshot.canonical_values(config))
        follower = Follower(
            run,
            tracker,
            position,
            partial(save_position, run, name),
            tokens_per_sample=None if is_rl(config) else config.data.sequence_length,
        )
        while not ended.is_set():
            if not follower.pass_on():
                ended.wait(POLL_S)
        follower.close()


def _wait_for_end(ended: threading.Event) -> None:
    """Waits for the end of standard input. From then on, the process lives for `CATCH_UP_S`."""
    sys.stdin.buffer.read()
    signal.alarm(round(CATCH_UP_S))
    ended.set()


if __name__ == "__main__":
    main()
