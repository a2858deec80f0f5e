"""A connection between two processes that passes large objects through memory of both."""

import mmap
import os
import tempfile
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any

PROTOCOL = 5
"""The first protocol of pickle that copies an array only once."""
KEPT_BYTES = 16 << 20
"""Memory that a channel keeps for the next object. More is given back after a larger one."""


class Channel:
    """One end of a connection. The two ends take turns: one sends, and the other answers.

    Objects are pickled as by `Connection.send`, but into a file in memory. Sending them through the
    connection would take several times the processor time.

    Args:
        connection: tells the other end that an object is there.
        memory: descriptor of the file, which both ends have. The channel owns it.
    """

    def __init__(self, connection: Connection, memory: int) -> None:
        self._connection = connection
        self._memory = os.fdopen(memory, "wb")
        self._map: mmap.mmap | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the end for a process that is being started."""
        return _received, (self._connection, DupFd(self._memory.fileno()))

    def send(self, value: object) -> None:
        """Sends an object that can be pickled.

        Raises:
            OSError: there is no memory for the object, or the connection was lost.
        """
        self._memory.seek(0)
        ForkingPickler(self._memory, PROTOCOL).dump(value)
        self._memory.truncate(max(self._memory.tell(), KEPT_BYTES))
        self._connection.send_bytes(b"")

    def receive(self) -> Any:
        """Returns the object that the other end sends.

        Raises:
            EOFError: the other end was closed.
            OSError: the connection was lost.
        """
        self._connection.recv_bytes()
        # A longer mapping than the file is no harm: unpickling ends with the object.
        if self._map is None or len(self._map) < os.fstat(self._memory.fileno()).st_size:
            self._map = mmap.mmap(self._memory.fileno(), 0)
        return ForkingPickler.loads(self._map)

    def close(self) -> None:
        """Closes this end in this process."""
        self._connection.close()
        self._memory.close()
        if self._map is not None:
            self._map.close()


def open_channel() -> tuple[Channel, Channel]:
    """Returns the two ends of a channel. The second one is passed to a process that is started."""
    ours, theirs = Pipe()
    memory = _file_in_memory()
    return Channel(ours, memory), Channel(theirs, os.dup(memory))


def _file_in_memory() -> int:
    """Returns the descriptor of a file without a name; outside Linux, of a temporary file."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("channel")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _received(connection: Connection, memory: Any) -> Channel:
    return Channel(connection, memory.detach())
