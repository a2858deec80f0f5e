"""Which ranks of a run do not answer, and which ones the others wait for.

Each rank rewrites a file in `heartbeats/` (`rampcli.worker.heartbeat`), and the supervisor touches
its lock. A rank is silent if its file is much older than the newest of these. All these times come
from the file system, so the clocks of hosts are not compared.
"""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rampcli.errors import DamagedFileError
from rampcli.files.guarded_folder import open_to_read
from rampcli.files.records import COUNT, POSITIVE, parse_json
from rampcli.machine.activity import EXCHANGING
from rampcli.runs.directory import RunDirectory

LEAST_BEAT_S, MOST_BEATS_PER_S = 1.0, 100
"""A rank rewrites its file every second, or more rarely if there are more ranks than this."""
LEAST_SILENT_S, SILENT_BEATS = 30.0, 10
"""A rank is silent after this many seconds, and the time of this many beats."""
STUCK_S = 20.0
"""A rank that has done the same for this many seconds may be stuck."""
RECORD_BYTES = 512
"""Bytes of a file, padded with spaces. It is rewritten in place."""
MOST_RECORD_BYTES = 4096
MOST_RANKS = 20_000
_NAME = re.compile(r"rank_(\d{1,7})\.json", re.ASCII)
RECORD = {
    "rank": COUNT,
    "world_size": POSITIVE,
    "host": str,
    "pid": POSITIVE,
    "doing": str,
    "waits": bool,
    "doing_s": float,
}
"""Shape of a file, in the notation of `rampcli.files.records`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rank:
    """A rank as its file describes it.

    Attributes:
        doing: what it does, such as `reading samples`.
        waits: whether it waits for other ranks to reach the same point.
        doing_s: seconds for which it has done so.
        answers: whether its process runs.
    """

    rank: int
    host: str
    pid: int
    doing: str
    waits: bool
    doing_s: float
    answers: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """The ranks of a run while they run, in order.

    Attributes:
        known: ranks that have a file.
        missing: numbers of ranks that have none, because their processes have not started.
        now_s: the present time of the file system in seconds since 1970, or None if no rank is
            known. It may be a second old.
    """

    known: tuple[Rank, ...] = ()
    missing: tuple[int, ...] = ()
    now_s: float | None = None

    @property
    def silent(self) -> tuple[Rank, ...]:
        """Ranks whose processes do not run."""
        return tuple(rank for rank in self.known if not rank.answers)

    @property
    def behind(self) -> tuple[Rank, ...]:
        """Ranks that others wait for, as far as that can be told.

        These are silent ranks. If no other rank makes progress, they are also the ranks that do
        what they do alone; and if there are none of these, the ranks that compute while others
        wait.
        """
        busy = [rank for rank in self._stuck if not rank.waits]
        found = self.silent + tuple(rank for rank in busy if rank.doing not in EXCHANGING)
        if not found and not self.missing:
            found = tuple(busy)
        # If all do the same, none is behind.
        return () if len(found) == len(self.known) and not self.silent else found

    @property
    def waiting(self) -> tuple[Rank, ...]:
        """Ranks that wait for those which are behind or missing."""
        behind = {rank.rank for rank in self.behind}
        if not behind and not self.missing:
            return ()
        return tuple(rank for rank in self._stuck if rank.rank not in behind)

    @property
    def _stuck(self) -> tuple[Rank, ...]:
        """Ranks that answer, if none of them makes progress, else no ranks."""
        answering = tuple(rank for rank in self.known if rank.answers)
        return answering if all(rank.doing_s >= STUCK_S for rank in answering) else ()

    def to_json(self) -> dict[str, Any]:
        """Returns facts about the ranks that `rampcli status --json` prints."""
        return {
            "ranks": [asdict(rank) for rank in self.known],
            "missing": list(self.missing),
            "behind": [rank.rank for rank in self.behind],
            "waiting": [rank.rank for rank in self.waiting],
        }


def heartbeat_file(run: RunDirectory, rank: int) -> Path:
    """Returns the file of a rank."""
    return run.heartbeats / f"rank_{rank}.json"


def beat_s(world_size: int) -> float:
    """Returns the seconds from one heartbeat of a rank to the next.

    All ranks together write at most `MOST_BEATS_PER_S` times a second.
    """
    return max(LEAST_BEAT_S, world_size / MOST_BEATS_PER_S)


def touch(run: RunDirectory) -> None:
    """Gives the lock of a run the present time of its file system, which its supervisor holds."""
    with suppress(OSError):  # the disk is read-only, or a user has deleted the file
        os.utime(run.lock, follow_symlinks=False)


def touched_s(run: RunDirectory) -> float:
    """Returns when the lock of a run was touched last, in seconds since 1970; 0 without a lock."""
    with suppress(OSError):
        return run.lock.lstat().st_mtime
    return 0.0


def read_ranks(run: RunDirectory) -> Ranks:
    """Returns the ranks of a run. There are none if nothing is known about them.

    Files that are damaged are left out, and so are those of an earlier start with more ranks.
    """
    files = dict(_files(run))
    found = {rank: each for rank, path in files.items() if (each := _read(path, rank)) is not None}
    if not found:
        return Ranks()
    newest_s, newest = max(found.values(), key=lambda each: each[0])
    now_s = max(newest_s, touched_s(run))
    world_size = newest["world_size"]
    silent_s = max(LEAST_SILENT_S, SILENT_BEATS * beat_s(world_size))
    known = tuple(
        Rank(
            **{name: record[name] for name in RECORD if name != "world_size"},
            answers=now_s - written_s <= silent_s,
        )
        for rank, (written_s, record) in sorted(found.items())
        if rank < world_size
    )
    return Ranks(
        known=known,
        # A file is empty if the disk was full.
        missing=tuple(rank for rank in range(min(world_size, MOST_RANKS)) if rank not in files),
        now_s=now_s,
    )


def _files(run: RunDirectory) -> Iterable[tuple[int, Path]]:
    """Yields the numbers of ranks, and their files."""
    with suppress(OSError), os.scandir(run.heartbeats) as entries:
        for entry in entries:
            match = _NAME.fullmatch(entry.name)
            if match and int(match[1]) < MOST_RANKS:
                yield int(match[1]), Path(entry.path)


def _read(path: Path, rank: int) -> tuple[float, dict[str, Any]] | None:
    """Returns when the file of a rank was written and what it says, or None if it is damaged."""
    with suppress(OSError, DamagedFileError), open_to_read(path, follows_links=False) as file:
        # Opening a file on NFS asks the server for its present time and content.
        written_s = os.fstat(file.fileno()).st_mtime
        record = parse_json(file.read(MOST_RECORD_BYTES), RECORD, where=str(path))
        if record["rank"] == rank:
            return written_s, record
    return None
