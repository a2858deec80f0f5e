"""The heartbeat of a rank: a small file that says what the rank does, rewritten by a thread.

A process that is stopped, or whose host is lost, stops to rewrite its file. A rank whose main
thread waits or hangs goes on, and the file says what it does. So readers can tell them apart.
"""

import json
import os
import socket
import threading
import time
from contextlib import suppress

from rampcli.errors import RampcliError
from rampcli.machine.activity import activity
from rampcli.runs.directory import RunDirectory
from rampcli.runs.heartbeats import RECORD_BYTES, beat_s, heartbeat_file

END_S = 2.0
"""Time that the thread gets to remove the file. A disk that hangs must not keep a rank."""


class Heartbeat:
    """Rewrites the file of a rank in a `with` statement. Errors of the disk do not reach the rank.

    Ranks that only generate count among the `world_size` ranks.
    """

    def __init__(self, run: RunDirectory, *, rank: int, world_size: int) -> None:
        self.run = run
        self.path = heartbeat_file(run, rank)
        self.facts = {
            "rank": rank,
            "world_size": world_size,
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        self.every_s = beat_s(world_size)
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        self._thread.join(END_S)

    def _run(self) -> None:
        """Rewrites the file, and at the end removes it, and its folder with the last one."""
        if self.facts["rank"] == 0:  # files of ranks that were killed; the others rewrite theirs
            with suppress(OSError, RampcliError):
                self.run.remove_tree(self.run.heartbeats)
        while True:
            with suppress(OSError, RampcliError):  # the disk is full or read-only, or a link
                self._beat()
            if self._has_ended.wait(self.every_s):
                break
        with suppress(OSError, RampcliError):
            self.run.remove_file(self.path)
            os.rmdir(self.run.heartbeats)

    def _beat(self) -> None:
        doing, waits, since = activity()
        doing_s = round(time.monotonic() - since, 3)
        facts = self.facts | {"doing": doing, "waits": waits, "doing_s": doing_s}
        record = json.dumps(facts).encode().ljust(RECORD_BYTES)
        try:
            self._write(record)
        except FileNotFoundError:
            self.run.make_folder(self.run.heartbeats)
            self._write(record)

    def _write(self, record: bytes) -> None:
        """Rewrites the file in place, because a full disk has no room for another one."""
        descriptor = self.run.open(self.path, os.O_WRONLY | os.O_CREAT)
        try:
            os.pwrite(descriptor, record, 0)
        finally:
            os.close(descriptor)
