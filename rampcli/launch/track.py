"""The process of one tracker: `python -m rampcli.launch.track RUN_DIR NAME`.

It logs the rows of a run until a line comes on standard input, then the rest of them, and exits.
The line holds the seconds that it has for that. Its output goes to a log; if it fails, the last
line says why.
"""

import os
import sys
import threading
import traceback
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

from rampcli.config import snapshot
from rampcli.config.extension_settings import extension_function
from rampcli.errors import RampcliError, reason_of
from rampcli.files.locks import hold
from rampcli.launch.trackers import CATCH_UP_S
from rampcli.machine.lifeline import die_with_parent
from rampcli.plugins.extensions import TRACKERS_KEY
from rampcli.plugins.trackers import TRACKERS
from rampcli.runs.directory import RunDirectory
from rampcli.runs.recorded_phases import tokens_at
from rampcli.settings.by_key import leaves
from rampcli.settings.rl import is_rl
from rampcli.tracking.follow import LOOK_EVERY_S, Follower
from rampcli.tracking.tracker import Position, Tracker, read_position, save_position


def main() -> None:
    """Logs the rows of a run. The exit code is 1 if the tracker fails."""
    die_with_parent()
    run, name = RunDirectory(Path(sys.argv[1])), sys.argv[2]
    end = Future[float]()
    threading.Thread(
        target=lambda: end.set_result(float(sys.stdin.readline() or 0)), daemon=True
    ).start()
    try:
        follow(run, name, end)
    except Exception as error:
        traceback.print_exc()
        kind = "" if isinstance(error, RampcliError) else f"{type(error).__name__}: "
        print(f"{kind}{reason_of(error)}", file=sys.stderr, flush=True)  # noqa: T201
        os._exit(1)  # exit handlers of a library may print or wait


def follow(run: RunDirectory, name: str, end: Future[float]) -> None:
    """Logs the rows of a run until its end, earlier ones first.

    Half of the time after the end is for rows, and half for the tracker to complete its curves.

    Args:
        run: the run directory, in which the tracker has a position.
        end: the seconds that this process may still live, once no more rows come.

    Raises:
        RampcliError: the position or a row is damaged, or there was no time for all rows.
        BlockingIOError: another process logs the run to the same tracker.
    """
    with hold(run.trackers / f"{name}.lock", wait_s=CATCH_UP_S):
        config = snapshot.read(run.config)
        position = read_position(run, name) or Position()
        extension = extension_function(TRACKERS_KEY, name, config.logging)
        opened = extension or resolve_name(TRACKERS[name].name)
        tracker: Tracker = opened(run, position, config.name)
        tracker.log_config(dict(leaves(config)))
        follower = Follower(
            run,
            tracker,
            position,
            partial(save_position, run, name),
            tokens_at=None if is_rl(config) else partial(tokens_at, run.read_plan()),
        )
        while not end.done():
            if not follower.pass_on():
                wait([end], LOOK_EVERY_S)
        if not follower.close(within_s=end.result() / 2):
            raise RampcliError(
                f"it had reached step {follower.position.step} when its time was over;"
                " the same command continues it"
            )


if __name__ == "__main__":
    main()
