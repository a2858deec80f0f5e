"""What this rank does, for its heartbeat (`rampcli.worker.heartbeat`).

The main thread says what it begins, and when it waits for other ranks. A thread that saves a
checkpoint in the background calls the same functions. Its waits count while the main thread waits
for it.
"""

import threading
import time

JOINING, LOADING = "joining the other ranks", "loading"
COMPILING, READING, COMPUTING = "compiling the layers", "reading samples", "computing a step"
READING_VALIDATION, VALIDATING = "reading validation samples", "validating"
SAVING, GENERATING, SCORING = "saving a checkpoint", "generating responses", "scoring responses"
ENDING = "ending"
EXCHANGING = (COMPUTING, VALIDATING)
"""Activities in which ranks also wait for each other inside of passes, where `waiting` is unknown.
"""

Activity = tuple[str, bool, float]
"""What a rank does, whether it waits for other ranks, and since when, as `time.monotonic` counts.
"""

_MAIN = threading.main_thread().ident
_now: Activity = (LOADING, False, time.monotonic())
_saver_waits = False


def begin(doing: str) -> None:
    """Notes what this rank does from now on."""
    _note(doing, waits=False)


class _Waiting:
    """Notes that this rank waits for others in a block. Blocks must not be nested."""

    __slots__ = ()

    def __enter__(self) -> None:
        _note(_now[0], waits=True)

    def __exit__(self, *_: object) -> None:
        _note(_now[0], waits=False)


waiting = _Waiting()


def _note(doing: str, *, waits: bool) -> None:
    global _now, _saver_waits
    if threading.get_ident() == _MAIN:
        _now = (doing, waits, time.monotonic())
    else:
        _saver_waits = waits


def activity() -> Activity:
    """Returns what this rank does now."""
    doing, waits, since = _now
    return doing, waits or (doing == SAVING and _saver_waits), since
