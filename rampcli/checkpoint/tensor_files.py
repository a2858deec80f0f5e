"""Shards in safetensors files (format: huggingface.co/docs/safetensors).

Files are written and read in pieces, which are hashed on the way. Their headers say which shards a
file holds, and where they lie in their tensors, in the format of torch.distributed.checkpoint. So
its reader can read these files too.
"""

import errno
import fcntl
import json
import math
import mmap
import os
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rampcli.checkpoint.shards import Shard, Tiling, overlap
from rampcli.errors import DamagedFileError
from rampcli.files.checksums import SUMMED_PIECE_BYTES, PageSums, expected_checksum
from rampcli.files.guarded_folder import GuardedFolder, open_to_read
from rampcli.files.records import parse_json
from rampcli.files.safetensors_header import METADATA, is_counts, read_header
from rampcli.models.initialize import FLOATS
from rampcli.parallel.ranks import use_device

ALIGNED_BYTES = mmap.PAGESIZE
"""Offsets and sizes of direct writes are multiples of this, and so is the size of a header."""
OFFSETS = "DCP_SHARDING_INFO"
"""Metadata field with the offsets of each shard in its tensor."""
TYPES = FLOATS | {"I64": torch.int64}
TYPE_NAMES = {dtype: name for name, dtype in TYPES.items()}
SUFFIX = ".safetensors"
MAX_FILES = 4
"""A rank divides its shards among at most this many files."""
READ_AT_ONCE = 4
"""Files that a rank reads at the same time."""
WRITTEN_AT_ONCE = 2
"""Files that a rank writes at the same time."""
BUFFERS = 2
"""Buffers of a file that is being written: one is filled and hashed while another is written."""
MIN_FILE_BYTES = 32 * 2**20
"""Smallest worthwhile file. A rank with less than twice this many bytes writes only one."""
DIRECT = getattr(os, "O_DIRECT", 0)


@dataclass(frozen=True, slots=True)
class StoredShard:
    """A shard in a file: its tensor's name, its offsets there, its shape, and its first byte."""

    name: str
    dtype: torch.dtype
    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    first_byte: int


def file_header(shards: Sequence[Shard]) -> Tensor:
    """Returns the length and header of a safetensors file as bytes, padded to whole pages."""
    offsets = {shard.name: {"saved_offsets": shard.offsets} for shard in shards}
    header: dict[str, Any] = {
        METADATA: {"format": "pt", "DCP_VERSION": "1.0", OFFSETS: json.dumps(offsets)}
    }
    end = 0
    for shard in shards:
        begin, end = end, end + shard.values.nbytes
        header[shard.name] = {
            "dtype": TYPE_NAMES[shard.values.dtype],
            "shape": list(shard.values.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text = text.ljust(-(-(len(text) + 8) // ALIGNED_BYTES) * ALIGNED_BYTES - 8)
    return torch.frombuffer(bytearray(len(text).to_bytes(8, "little") + text), dtype=torch.uint8)


def read_stored_shards(path: Path, facts: Mapping[str, Any]) -> list[StoredShard]:
    """Returns the shards in a file.

    Args:
        facts: its size, as `write_shards` returns it.

    Raises:
        DamagedFileError: it has another size, or its header is not one of shards.
    """
    header = read_header(path)
    if header.file_bytes != facts["bytes"]:
        raise DamagedFileError(
            f"{path.name} has {header.file_bytes} bytes instead of {facts['bytes']}"
        )
    if OFFSETS not in header.metadata:
        raise DamagedFileError(f"{path.name} does not say where its shards lie in their tensors")
    content = header.metadata[OFFSETS].encode(errors="surrogatepass")
    offsets_of = parse_json(content, {}, where=f"{OFFSETS} of {path.name}")
    shards = []
    for name, stored in header.tensors.items():
        place = offsets_of.get(name)
        offsets = place.get("saved_offsets") if isinstance(place, dict) else None
        dtype = TYPES.get(stored.dtype)
        if not is_counts(offsets) or len(offsets) != len(stored.shape) or dtype is None:
            raise DamagedFileError(f"{path.name} holds {name} with an invalid type or offsets")
        start, shape = tuple(offsets) or (0,), stored.shape or (1,)  # at least one dimension
        shards.append(StoredShard(name, dtype, start, shape, stored.begin))
    return shards


def write_shards(folder: Path, shards: Sequence[Shard], *, rank: int) -> dict[str, dict[str, Any]]:
    """Writes a rank's shards into files of its own and flushes them to disk.

    Returns the size (`bytes`) and checksum (`sums`) of each file by name.

    Raises:
        OSError: a file cannot be written, for example because the disk is full.
    """
    size = sum(shard.values.nbytes for shard in shards)
    shares: list[list[Shard]] = [[] for _ in range(max(1, min(MAX_FILES, size // MIN_FILE_BYTES)))]
    loads = [0] * len(shares)
    for shard in sorted(shards, key=lambda shard: -shard.values.nbytes):
        emptiest = loads.index(min(loads))
        shares[emptiest].append(shard)
        loads[emptiest] += shard.values.nbytes
    files = {
        f"shard-{rank + 1:05d}-model-{number:05d}-of-{len(shares):05d}{SUFFIX}": share
        for number, share in enumerate(shares, start=1)
        if share
    }
    with _threads(WRITTEN_AT_ONCE, shards) as pool:
        facts = pool.map(lambda name: _write(folder / name, files[name]), files)
        return dict(zip(files, facts, strict=True))


def _threads(number: int, shards: Sequence[Shard]) -> ThreadPoolExecutor:
    """Returns threads that copy shards from or to their device."""
    device = shards[0].values.device if shards else torch.device("cpu")
    return ThreadPoolExecutor(number, initializer=use_device, initargs=(device,))


def _write(path: Path, shards: Sequence[Shard]) -> dict[str, Any]:
    """Writes a file past the page cache if the file system allows that.

    Filling the page cache can take longer than the disk does, and competes with training for
    processors. While a piece is written, the next one is copied and hashed: otherwise the disk
    would wait whenever the pieces of all files end together.
    """
    # Larger items first, so that each shard begins at a multiple of its item size.
    shards = sorted(shards, key=lambda shard: -shard.values.itemsize)
    parts = [
        file_header(shards),
        *(shard.values.contiguous().view(-1).view(torch.uint8) for shard in shards),
    ]
    buffers = [huge_pages(SUMMED_PIECE_BYTES) for _ in range(BUFFERS)]
    sums, written = PageSums(), 0
    writes: deque[Future[None]] = deque()
    descriptor = GuardedFolder(path.parent).open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with os.fdopen(descriptor, "wb", buffering=0) as opened, ThreadPoolExecutor(1) as writer:
        file = opened.fileno()
        with suppress(OSError):  # the file system has no direct writes
            fcntl.fcntl(file, fcntl.F_SETFL, DIRECT)
        for buffer, filled in _fill(buffers, parts):
            sums.update(buffer[:filled])
            writes.append(writer.submit(_write_piece, file, buffer, filled, written))
            written += filled
            if len(writes) == BUFFERS:
                writes.popleft().result()  # the next piece is copied over this one
        for write in writes:
            write.result()
        os.truncate(file, written)  # drop the padding of the last piece
        os.fsync(file)
    return {"bytes": written, "sums": sums.hexdigest()}


def huge_pages(size: int) -> mmap.mmap:
    """Returns `size` bytes of page-aligned memory, in huge pages if the kernel has them.

    A direct transfer takes one request for each stretch of physical memory. Small pages are
    scattered, so a disk would get many small requests.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # another system, or a kernel without huge pages
        # A direct transfer into private memory may go astray if a process is forked meanwhile.
        memory.madvise(mmap.MADV_DONTFORK)
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _write_piece(file: int, buffer: memoryview, filled: int, offset: int) -> None:
    """Writes the filled part of a buffer at an offset, padded with zeros to whole pages."""
    whole, done = -(-filled // ALIGNED_BYTES) * ALIGNED_BYTES, 0
    buffer[filled:whole] = bytes(whole - filled)
    while done < whole:
        done += _write_at(file, buffer[done:whole], offset + done)


def _write_at(file: int, piece: memoryview, offset: int) -> int:
    """Writes at an offset and returns the number of bytes written.

    If a direct write is refused, this and all later writes go through the page cache. Some file
    systems refuse the first direct write. Others write part of a piece to a full disk, and refuse
    the rest because it is not aligned.
    """
    try:
        return os.pwrite(file, piece, offset)
    except OSError as error:
        if error.errno != errno.EINVAL or not fcntl.fcntl(file, fcntl.F_GETFL) & DIRECT:
            raise
        fcntl.fcntl(file, fcntl.F_SETFL, 0)
        return os.pwrite(file, piece, offset)


def _fill(
    buffers: Sequence[mmap.mmap], parts: Sequence[Tensor]
) -> Iterator[tuple[memoryview, int]]:
    """Copies parts into buffers, which take turns.

    Yields each buffer when it is full, and the last one at the end, with the number of its bytes
    that are filled.
    """
    turns = cycle(
        (memoryview(buffer), torch.frombuffer(buffer, dtype=torch.uint8)) for buffer in buffers
    )
    (view, buffer), filled = next(turns), 0
    for part in parts:
        taken = 0
        while taken < part.numel():
            count = min(part.numel() - taken, buffer.numel() - filled)
            buffer[filled : filled + count].copy_(part[taken : taken + count])
            filled, taken = filled + count, taken + count
            if filled == buffer.numel():
                yield view, filled
                (view, buffer), filled = next(turns), 0
    if filled:
        yield view, filled


@dataclass(frozen=True, slots=True)
class TensorFiles:
    """The tensor files of a checkpoint with their headers.

    Attributes:
        files: size and checksum of each file of the checkpoint, as `write_shards` returns them.
        stored: the shards in each tensor file.
    """

    folder: Path
    files: Mapping[str, Mapping[str, Any]]
    stored: Mapping[str, list[StoredShard]]

    @classmethod
    def open(cls, folder: Path, files: Mapping[str, Mapping[str, Any]]) -> "TensorFiles":
        """Reads the headers of all tensor files.

        Raises:
            DamagedFileError: one of them is not a whole safetensors file of the given size.
        """
        names = [name for name in files if name.endswith(SUFFIX)]
        with ThreadPoolExecutor(READ_AT_ONCE) as pool:
            stored = pool.map(lambda name: read_stored_shards(folder / name, files[name]), names)
            return cls(folder, files, dict(zip(names, stored, strict=True)))

    def hold(self, prefix: str) -> bool:
        """Returns whether the name of a stored tensor begins with a prefix."""
        return any(
            stored.name.startswith(prefix) for each in self.stored.values() for stored in each
        )

    def find(self, shards: Sequence[Shard]) -> dict[str, list["ShardRead"]]:
        """Returns what to read from each file to fill the shards, which may be on the meta device.

        Raises:
            DamagedFileError: the stored shards do not tile the shards' tensors, or differ from them
                in type.
        """
        wanted = {
            shard.name: shard
            if shard.offsets
            else Shard(shard.name, (0,), shard.values.view(1), (1,))  # at least one dimension
            for shard in shards
            if shard.values.numel()
        }
        tilings = {name: Tiling(shard.tensor_shape) for name, shard in wanted.items()}
        reads: dict[str, list[ShardRead]] = {}
        for file, stored_shards in self.stored.items():
            for stored in stored_shards:
                if (shard := wanted.get(stored.name)) is None:
                    continue
                if stored.dtype != shard.values.dtype or len(stored.shape) != len(
                    shard.tensor_shape
                ):
                    raise DamagedFileError(
                        f"{file} holds {stored.name} with another type or number of dimensions"
                        " than the model"
                    )
                tilings[stored.name].add(stored.offsets, stored.shape)
                if (read := ShardRead.of(shard, stored)) is not None:
                    reads.setdefault(file, []).append(read)
        for name, tiling in tilings.items():
            if not tiling.is_exact:
                shape = wanted[name].tensor_shape
                raise DamagedFileError(
                    f"parts of {name} (shape {shape}) are missing or stored twice"
                )
        return reads

    def read(self, shards: Sequence[Shard], *, to_check: Collection[str] = ()) -> None:
        """Fills shards in place, however their tensors were split when they were saved.

        Args:
            to_check: files that are read whole and compared with their checksums.

        Raises:
            DamagedFileError: as `find`, before anything is read; or a file's checksum differs.
        """
        reads = self.find(shards)
        names = [name for name in self.files if name in reads or name in to_check]

        def read(name: str) -> None:
            path, facts = self.folder / name, self.files[name]
            _read(path, facts, reads.get(name, ()), checks=name in to_check)

        with _threads(READ_AT_ONCE, shards) as pool:
            deque(pool.map(read, names), maxlen=0)


def _read(
    path: Path, facts: Mapping[str, Any], reads: Sequence["ShardRead"], *, checks: bool
) -> None:
    """Reads parts of a file; with `checks`, reads all of it and compares its checksum."""
    size = facts["bytes"]
    checksum, expected = expected_checksum(facts) if checks else (None, None)
    waiting = deque(sorted(reads, key=lambda read: read.first))
    memory = huge_pages(SUMMED_PIECE_BYTES)
    buffer = torch.frombuffer(memory, dtype=torch.uint8)
    with open_to_read(path) as opened, memoryview(memory) as view:
        file = opened.fileno()
        if hasattr(os, "posix_fadvise"):  # make the kernel read further ahead
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        for begin in range(0, size, SUMMED_PIECE_BYTES):
            end = min(begin + SUMMED_PIECE_BYTES, size)
            if checksum is None and not (waiting and waiting[0].first < end):
                continue
            filled = 0
            while begin + filled < end:
                more = os.preadv(file, [view[filled : end - begin]], begin + filled)
                if not more:
                    raise DamagedFileError(f"{path.name} ends too soon")
                filled += more
            if checksum is not None:
                checksum.update(view[: end - begin])
            while waiting and waiting[0].first < end:
                waiting[0].take(buffer[: end - begin], begin)
                if waiting[0].end > end:
                    break
                waiting.popleft()
    if checksum is not None and checksum.hexdigest() != expected:
        raise DamagedFileError(f"{path.name} does not have the checksum in its manifest")


@dataclass(slots=True)
class ShardRead:
    """Rows of a stored shard, some or all columns of which are copied into a tensor.

    Attributes:
        values: where the numbers go; at least one dimension.
        columns: the part of each row that is copied.
        shape: of the rows.
        first, end: first byte of the rows in the file, and the byte after them.
        buffer: bytes of the rows while they are read. It is the memory of `values` if that has
            their layout.
    """

    values: Tensor
    columns: tuple[slice, ...]
    shape: tuple[int, ...]
    first: int
    end: int
    buffer: Tensor | None = None

    @classmethod
    def of(cls, shard: Shard, stored: StoredShard) -> "ShardRead | None":
        """Returns what a shard reads from a stored one, or None if they do not overlap."""
        both = overlap(shard, stored.offsets, stored.shape)
        if both is None:
            return None
        in_shard, (rows, *columns) = both
        row_bytes = math.prod(stored.shape[1:]) * stored.dtype.itemsize
        return cls(
            values=shard.values[in_shard],
            columns=tuple(columns),
            shape=(rows.stop - rows.start, *stored.shape[1:]),
            first=stored.first_byte + rows.start * row_bytes,
            end=stored.first_byte + rows.stop * row_bytes,
        )

    def take(self, piece: Tensor, begin: int) -> None:
        """Copies from the piece that begins at byte `begin` of the file. Pieces come in order."""
        if self.buffer is None:
            is_direct = self.values.shape == self.shape and self.values.is_contiguous()
            rows = self.values if is_direct else torch.empty(self.shape, dtype=self.values.dtype)
            self.buffer = rows.view(-1).view(torch.uint8)
        start, stop = max(self.first, begin), min(self.end, begin + len(piece))
        self.buffer[start - self.first : stop - self.first].copy_(
            piece[start - begin : stop - begin]
        )
        if stop == self.end:
            rows = self.buffer.view(self.values.dtype).view(self.shape)
            if rows.data_ptr() != self.values.data_ptr():
                self.values.copy_(rows[(slice(None), *self.columns)])
            self.buffer = None
