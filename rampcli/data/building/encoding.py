"""Encodes chunks to tokens, in this process or in worker processes, and keeps their order."""

import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rampcli.data.building.parsing import BadRecord, parse_chunk
from rampcli.data.building.records import Chunk
from rampcli.data.building.streams import PIECE_BYTES, pieces_of
from rampcli.data.tokenizer import encoder_of, open_tokenizer
from rampcli.errors import RampcliError, UsageError
from rampcli.lifeline import die_with_parent

AHEAD = 2
"""Chunks in progress or waiting, per worker."""
ONE_THREAD = {
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


@dataclass(frozen=True, slots=True)
class Encoded:
    """Result of encoding a chunk.

    Attributes:
        tokens: tokens of all its documents, concatenated, [tokens].
        lengths: length in tokens of each document that is not empty, int64 [documents]; for a piece
            of a text, the length of the piece.
        empty: number of documents without tokens.
        bad: records that were left out.
        failure: why the tokenizer cannot encode the chunk, or None.
    """

    tokens: NDArray[Any]
    lengths: NDArray[np.int64]
    empty: int
    text_bytes: int
    bad: tuple[BadRecord, ...]
    failure: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoding:
    """How chunks are encoded.

    Attributes:
        kind: numpy's name of the type that tokens are stored in.
    """

    tokenizer: Path
    text_key: str
    eod: int | None
    kind: str

    def open(self) -> Callable[[Chunk], Encoded]:
        """Opens the tokenizer and returns a function that encodes a chunk.

        The function adds no end-of-document token to a piece of a text: `PartialBuild.add` does
        so after the last piece.
        """
        tokenizer = open_tokenizer(self.tokenizer)
        # Text that looks like a special token must not end a document.
        tokenizer.encode_special_tokens = True
        encode = encoder_of(tokenizer)

        def encode_chunk(chunk: Chunk) -> Encoded:
            texts, bad = parse_chunk(chunk, self.text_key)
            contents = [text.encode() for text in texts]
            cut = [list(_cut(content)) for content in contents]
            documents: list[list[NDArray[Any]]] = []
            empty, failure = 0, None
            try:
                tokens = iter(encode([piece for pieces in cut for piece in pieces]))
                documents = [[next(tokens) for _ in pieces] for pieces in cut]
            except UsageError as error:
                failure = error.message
            if not chunk.is_piece:
                full = [parts for parts in documents if any(map(len, parts))]
                empty = len(documents) - len(full)
                end = [] if self.eod is None else [np.array([self.eod])]
                documents = [parts + end for parts in full]
            parts = [part for document in documents for part in document]
            return Encoded(
                np.concatenate([np.empty(0, self.kind), *parts], dtype=self.kind, casting="unsafe"),
                np.array([sum(map(len, document)) for document in documents], dtype=np.int64),
                empty,
                sum(map(len, contents)),
                tuple(bad),
                failure,
            )

        return encode_chunk


def _cut(content: bytes) -> Iterator[str]:
    """Yields a text; a long one in pieces, cut at the places where a text file is cut."""
    return (piece.decode() for piece, _ in pieces_of(BytesIO(content), PIECE_BYTES))


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


def encode_in_order(
    chunks: Iterator[Chunk], encoding: Encoding, workers: int
) -> Generator[tuple[Chunk, Encoded], None, None]:
    """Encodes chunks and yields them in their order; a bounded number is encoded ahead.

    Raises:
        RampcliError: a worker process died.
    """
    with environment(ONE_THREAD):
        if workers == 1:
            encode = encoding.open()
            yield from ((chunk, encode(chunk)) for chunk in chunks)
            return
        # Processes end before threads, because a thread may be waiting for its process.
        with ThreadPoolExecutor(workers) as threads, _processes(encoding, workers) as idle:
            waiting: deque[tuple[Chunk, Future[Encoded]]] = deque()
            for chunk in chunks:
                waiting.append((chunk, threads.submit(_encode_in_worker, idle, chunk)))
                if len(waiting) >= AHEAD * workers:
                    first, future = waiting.popleft()
                    yield first, future.result()
            for first, future in waiting:
                yield first, future.result()


@contextmanager
def _processes(encoding: Encoding, count: int) -> Iterator[SimpleQueue[Connection]]:
    """Runs worker processes during the block; yields the connections of the idle ones."""
    # Not fork: the child would inherit the locks of a tokenizer's threads without the threads.
    context = get_context("spawn")
    idle: SimpleQueue[Connection] = SimpleQueue()
    started: list[SpawnProcess] = []
    try:
        for _ in range(count):
            ours, theirs = context.Pipe()
            with theirs, _blocking_ctrl_c():  # Ctrl-C is handled by this process alone
                process = context.Process(target=_work, args=(encoding, theirs), daemon=True)
                process.start()
                started.append(process)
            idle.put(ours)
        yield idle
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.join()


def _encode_in_worker(idle: SimpleQueue[Connection], chunk: Chunk) -> Encoded:
    connection = idle.get()
    try:
        connection.send(chunk)
        encoded: Encoded = connection.recv()
        return encoded
    except (EOFError, OSError) as error:
        raise RampcliError(
            "a worker process died: it was killed, or ran out of memory",
            remedy="run the same command to resume, with fewer --workers if memory is short",
        ) from error
    finally:
        idle.put(connection)


@contextmanager
def _blocking_ctrl_c() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(encoding: Encoding, connection: Connection) -> None:
    """Encodes chunks in a worker process until the connection closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent()
    parent = parent_process()
    if parent is None or os.getppid() != parent.pid:  # the parent died before die_with_parent()
        os._exit(1)
    encode = encoding.open()
    with suppress(EOFError, ConnectionError):  # the parent closed the connection
        while True:
            connection.send(encode(connection.recv()))
