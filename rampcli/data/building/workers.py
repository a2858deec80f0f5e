"""Works on chunks in this process or in worker processes, and keeps their order."""

import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, Pipe
from multiprocessing.context import SpawnProcess
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from rampcli.data.building.records import Chunk
from rampcli.errors import RampcliError
from rampcli.machine.lifeline import die_with_parent

AHEAD = 2
"""Chunks in progress or waiting, per worker."""
ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # glibc would return the memory of each chunk to the kernel, which clears it for the next one.
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(64 << 20),
}
"""Environment of worker processes: one thread each, and thresholds of malloc in bytes."""
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Channel:
    """One end of two pipes. The two ends take turns: one sends, and the other answers."""

    incoming: Connection
    outgoing: Connection

    def close(self) -> None:
        """Closes this end in this process."""
        self.incoming.close()
        self.outgoing.close()


def open_channel() -> tuple[Channel, Channel]:
    """Returns the two ends of a channel. The second one is passed to a process that is started."""
    # A duplex pipe would be a socket, which takes several times the processor time.
    (their_incoming, our_outgoing), (our_incoming, their_outgoing) = Pipe(False), Pipe(False)
    return Channel(our_incoming, our_outgoing), Channel(their_incoming, their_outgoing)


class ChunkWork(Protocol[T_co]):
    """What to do with each chunk. It can be pickled."""

    def open(self) -> Callable[[Chunk], T_co]:
        """Returns the function that is applied to chunks; each process calls this once."""


@contextmanager
def environment(changes: dict[str, str]) -> Iterator[None]:
    """Sets environment variables for the block and for processes that it starts."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def map_in_order(
    chunks: Iterator[Chunk], work: ChunkWork[T_co], workers: int
) -> Generator[tuple[Chunk, T_co], None, None]:
    """Yields chunks with their results, in the order of the chunks.

    A bounded number of chunks is worked on ahead.

    Raises:
        RampcliError: a worker process died.
    """
    with environment(ENVIRONMENT):
        if workers == 1:
            apply = work.open()
            yield from ((chunk, apply(chunk)) for chunk in chunks)
            return
        # Processes end before threads, because a thread may be waiting for its process. Our ends
        # of the channels are closed last, because threads use them.
        with (
            ExitStack() as ends,
            ThreadPoolExecutor(workers) as threads,
            _processes(work, workers, ends) as idle,
        ):
            waiting: deque[tuple[Chunk, Future[T_co]]] = deque()
            for chunk in chunks:
                waiting.append((chunk, threads.submit(_apply_in_worker, idle, chunk)))
                if len(waiting) >= AHEAD * workers:
                    first, future = waiting.popleft()
                    yield first, future.result()
            for first, future in waiting:
                yield first, future.result()


@contextmanager
def _processes(work: ChunkWork[Any], count: int, ends: ExitStack) -> Iterator[SimpleQueue[Channel]]:
    """Runs worker processes during the block; yields the channels of the idle ones.

    Args:
        ends: closes the channels.
    """
    # Not fork: the child would inherit the locks of a tokenizer's threads without the threads.
    context = get_context("spawn")
    idle: SimpleQueue[Channel] = SimpleQueue()
    started: list[SpawnProcess] = []
    try:
        for _ in range(count):
            ours, theirs = open_channel()
            ends.callback(ours.close)
            with closing(theirs), _blocking_ctrl_c():  # Ctrl-C is handled by this process alone
                process = context.Process(target=_work, args=(work, theirs), daemon=True)
                process.start()
                started.append(process)
            idle.put(ours)
        yield idle
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.join()


def _apply_in_worker(idle: SimpleQueue[Channel], chunk: Chunk) -> Any:
    channel = idle.get()
    try:
        channel.outgoing.send(chunk)
        return channel.incoming.recv()
    except (EOFError, OSError) as error:
        raise RampcliError(
            "a worker process died: it was killed, or ran out of memory",
            remedy="run the same command to resume, with fewer --workers if memory is short",
        ) from error
    finally:
        idle.put(channel)


@contextmanager
def _blocking_ctrl_c() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(work: ChunkWork[Any], channel: Channel) -> None:
    """Works on chunks in a worker process until the channel is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent()
    parent = parent_process()
    if parent is None or os.getppid() != parent.pid:  # the parent died before die_with_parent()
        os._exit(1)
    apply = work.open()
    with suppress(EOFError, ConnectionError):  # the parent closed the channel
        while True:
            channel.outgoing.send(apply(channel.incoming.recv()))
