"""Works on chunks in this process or in worker processes, and keeps their order."""

import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from typing import Any, Protocol, TypeVar

from rampcli.data.building.records import Chunk
from rampcli.errors import RampcliError
from rampcli.machine.lifeline import die_with

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
Result = TypeVar("Result", covariant=True)
_apply: Callable[[Chunk], Any]
"""In a worker process: the function that is applied to chunks."""


class Work(Protocol[Result]):
    """What to do with each chunk. It can be pickled."""

    def open(self) -> Callable[[Chunk], Result]:
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
    chunks: Iterator[Chunk], work: Work[Result], workers: int
) -> Generator[tuple[Chunk, Result], None, None]:
    """Yields chunks with their results, in the order of the chunks.

    A bounded number of chunks is worked on ahead.

    Raises:
        RampcliError: a worker process died.
    """
    with environment(ENVIRONMENT):
        if workers == 1:
            apply = work.open()
            yield from ((chunk, apply(chunk)) for chunk in chunks)
        else:
            yield from _map_in_processes(chunks, work, workers)


def _map_in_processes(
    chunks: Iterator[Chunk], work: Work[Result], workers: int
) -> Generator[tuple[Chunk, Result], None, None]:
    others, waiting = active_children(), deque[tuple[Chunk, Future[Result]]]()
    # Not fork: the child would inherit the locks of a tokenizer's threads without the threads.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _begin, (work, os.getpid()))
    try:
        for chunk in chunks:
            with _blocking_ctrl_c():  # The first chunk starts the processes.
                waiting.append((chunk, pool.submit(_work, chunk)))
            if len(waiting) >= AHEAD * workers:
                first, future = waiting.popleft()
                yield first, future.result()
        for first, future in waiting:
            yield first, future.result()
    except BrokenExecutor as error:
        raise RampcliError(
            "a worker process died: it was killed, or ran out of memory",
            remedy="run the same command to resume, with fewer --workers if memory is short",
        ) from error
    except BaseException:
        for process in active_children():
            if process not in others:
                process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _blocking_ctrl_c() -> Iterator[None]:
    """Blocks SIGINT in the block and in processes that it starts: this process alone handles it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(work: Work[Any], parent: int) -> None:
    global _apply
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with(parent)
    _apply = work.open()


def _work(chunk: Chunk) -> Any:
    return _apply(chunk)
