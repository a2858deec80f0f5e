"""Chunks to tokens: in this process, or in others beside it, and in order either way."""

import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rampcli.data.building.parsing import BadRecord, Text, texts_of
from rampcli.data.building.records import Chunk
from rampcli.data.tokenizer import encoder_of, open_tokenizer
from rampcli.errors import RampcliError, UsageError
from rampcli.lifeline import die_with_parent

AHEAD = 2
"""Chunks that are worked on or wait, for each worker."""
ONE_THREAD = {
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


@dataclass(frozen=True, slots=True)
class Encoded:
    """What came of a chunk.

    Attributes:
        tokens: those of all its documents end to end, [tokens].
        lengths: of its documents that are not empty, in tokens, int64 [documents]; of a piece of a text, that of the piece.
        empty: documents without a token.
        text_bytes: of its texts, in UTF-8.
        bad: what was left out.
        failure: why the tokenizer cannot encode it, or None.
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
        tokenizer: its file.
        text_key: of the texts in JSON.
        eod: the token after each document, or None.
        kind: the type that tokens are stored in, as numpy names it.
    """

    tokenizer: Path
    text_key: str
    eod: int | None
    kind: str

    def open(self) -> Callable[[Chunk], Encoded]:
        """Open the tokenizer; gives what encodes a chunk. Of a piece of a text, the end is left to whoever puts the pieces together."""
        tokenizer = open_tokenizer(self.tokenizer)
        tokenizer.encode_special_tokens = (
            True  # what reads like one in a stranger's text must not end a document
        )
        encode = encoder_of(tokenizer)

        def encode_chunk(chunk: Chunk) -> Encoded:
            found = [text for one in chunk.slices for text in texts_of(one, self.text_key)]
            bad = tuple(one for one in found if isinstance(one, BadRecord))
            texts = [one for one in found if isinstance(one, Text)]
            cut = [list(text.pieces()) for text in texts]
            text_bytes = sum(text.bytes for text in texts)
            try:
                tokens = iter(encode([piece for pieces in cut for piece in pieces]))
            except UsageError as error:
                return self._joined([], 0, text_bytes, bad, failure=error.message)
            documents = [[next(tokens) for _ in pieces] for pieces in cut]
            if chunk.is_piece:
                return self._joined(documents, 0, text_bytes, bad)
            full = [parts for parts in documents if any(map(len, parts))]
            end = [] if self.eod is None else [np.array([self.eod])]
            return self._joined(
                [parts + end for parts in full], len(documents) - len(full), text_bytes, bad
            )

        return encode_chunk

    def _joined(
        self,
        documents: list[list[NDArray[Any]]],
        empty: int,
        text_bytes: int,
        bad: tuple[BadRecord, ...],
        failure: str | None = None,
    ) -> Encoded:
        parts = [part for document in documents for part in document]
        tokens = (
            np.concatenate(parts, dtype=self.kind, casting="unsafe")
            if parts
            else np.empty(0, dtype=self.kind)
        )
        lengths = np.array([sum(map(len, document)) for document in documents], dtype=np.int64)
        return Encoded(tokens, lengths, empty, text_bytes, bad, failure)


@contextmanager
def environment(changes: dict[str, str]) -> Iterator[None]:
    """Variables of the environment for a while, and for the processes that are started in it."""
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
    """Encode chunks, and give them back in their order. A few are ahead of the one that is given, however many there are.

    Raises:
        RampcliError: a worker process has died.
    """
    with environment(ONE_THREAD):
        if workers == 1:
            encode = encoding.open()
            yield from ((chunk, encode(chunk)) for chunk in chunks)
            return
        # The processes end first: a thread that waits for one must not be waited for.
        with ThreadPoolExecutor(workers) as threads, _processes(encoding, workers) as idle:
            waiting: deque[tuple[Chunk, Future[Encoded]]] = deque()
            for chunk in chunks:
                waiting.append((chunk, threads.submit(_ask, idle, chunk)))
                if len(waiting) >= AHEAD * workers:
                    first, future = waiting.popleft()
                    yield first, future.result()
            for first, future in waiting:
                yield first, future.result()


@contextmanager
def _processes(encoding: Encoding, count: int) -> Iterator[SimpleQueue[Connection]]:
    """Processes that answer each chunk with what it is encoded to, until the block ends."""
    context = get_context(
        "spawn"
    )  # no fork: a tokenizer's threads would not be there in the child, and their locks would
    idle: SimpleQueue[Connection] = SimpleQueue()
    started: list[SpawnProcess] = []
    try:
        for _ in range(count):
            ours, theirs = context.Pipe()
            with theirs, _without_ctrl_c():  # Ctrl-C is for this process to answer
                process = context.Process(target=_answer, args=(encoding, theirs), daemon=True)
                process.start()
                started.append(process)
            idle.put(ours)
        yield idle
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.join()


def _ask(idle: SimpleQueue[Connection], chunk: Chunk) -> Encoded:
    connection = idle.get()
    try:
        connection.send(chunk)
        answer: Encoded = connection.recv()
        return answer
    except (EOFError, OSError) as error:
        remedy = (
            "the same command goes on where it stood; with fewer --workers it takes less memory"
        )
        raise RampcliError(
            "a worker process has died: it was killed, or the memory was not enough", remedy=remedy
        ) from error
    finally:
        idle.put(connection)


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _answer(encoding: Encoding, connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent()
    parent = parent_process()
    if parent is None or os.getppid() != parent.pid:  # it was gone before it could be asked for
        os._exit(1)
    encode = encoding.open()
    with suppress(EOFError, ConnectionError):  # nobody asks any longer
        while True:
            connection.send(encode(connection.recv()))
