"""Blocks of tensors in safetensors files (format: huggingface.co/docs/safetensors), written and read in pieces that are hashed on the way.

Where a block is in its tensor stands in the header as torch.distributed.checkpoint writes it, whose reader takes the files too. The page
cache is left out of writing where the file system can do without: filling it can take more time than the disk does, and takes processors
from the training that goes on.
"""

import errno
import fcntl
import json
import math
import mmap
import os
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rampcli.engine.blocks import Block, overlap
from rampcli.run_directory import PIECE_BYTES, PageSums, expected_checksum

SUFFIX = ".safetensors"
LANES = 4
"""Files that a rank writes, or reads, at a time."""
LEAST_BYTES = 32 * 2**20
"""Of one rank's bytes in a file; more files than that are not worth it."""
ALIGNED_BYTES = mmap.PAGESIZE
"""What writes past the page cache are multiples of, in the file and in memory."""
DIRECT = getattr(os, "O_DIRECT", 0)
MOST_HEADER_BYTES = 100_000_000
"""As the safetensors library has it."""
TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64}
NAMES = {dtype: name for name, dtype in TYPES.items()}


class DamagedFileError(Exception):
    """A file is not what was written."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A block in a file: its tensor and box, and where its bytes begin in the file."""

    name: str
    dtype: torch.dtype
    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    first_byte: int


@dataclass(slots=True)
class Target:
    """Rows in a file, from byte `first` to byte `last` of it, of which numbers go to `values`.

    Attributes:
        values: where they go, of at least one dimension.
        columns: the numbers of each row that go there.
        shape: of the rows.
        dtype: of the rows.
        bytes: that have come so far: those of `values` where these are the rows as they stand in the file.
    """

    name: str
    values: Tensor
    columns: tuple[slice, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    first: int
    last: int
    bytes: Tensor | None = None

    @classmethod
    def of(cls, block: Block, stored: Stored) -> "Target | None":
        """What a block takes from a stored one; None where that is nothing."""
        both = overlap(block, stored.offsets, stored.shape)
        if both is None:
            return None
        here, (rows, *columns) = both
        row_bytes = math.prod(stored.shape[1:]) * stored.dtype.itemsize
        return cls(
            name=block.name,
            values=block.values[here],
            columns=tuple(columns),
            shape=(rows.stop - rows.start, *stored.shape[1:]),
            dtype=stored.dtype,
            first=stored.first_byte + rows.start * row_bytes,
            last=stored.first_byte + rows.stop * row_bytes,
        )

    def take(self, piece: Tensor, begin: int) -> None:
        """Take what there is for it in the piece that begins at byte `begin` of the file. Pieces come in their order."""
        if self.bytes is None:
            is_direct = (self.values.shape, self.values.dtype) == (self.shape, self.dtype) and self.values.is_contiguous()
            rows = self.values if is_direct else torch.empty(self.shape, dtype=self.dtype)
            self.bytes = rows.view(-1).view(torch.uint8)
        start, stop = max(self.first, begin), min(self.last, begin + len(piece))
        self.bytes[start - self.first : stop - self.first].copy_(piece[start - begin : stop - begin])
        if stop == self.last:
            rows = self.bytes.view(self.dtype).view(self.shape)
            if rows.data_ptr() != self.values.data_ptr():
                self.values.copy_(rows[(slice(None), *self.columns)])
            self.bytes = None


def write_blocks(folder: Path, blocks: Sequence[Block], *, rank: int) -> dict[str, dict[str, Any]]:
    """Write a rank's blocks into files of its own, and wait until they are on disk; their sizes and checksums by name.

    Raises:
        OSError: the disk is full, say.
    """
    size = sum(block.values.nbytes for block in blocks)
    lanes: list[list[Block]] = [[] for _ in range(max(1, min(LANES, size // LEAST_BYTES)))]
    loads = [0] * len(lanes)
    for block in sorted(blocks, key=lambda block: -block.values.nbytes):
        least = loads.index(min(loads))
        lanes[least].append(block)
        loads[least] += block.values.nbytes
    files = {f"shard-{rank + 1:05d}-model-{lane + 1:05d}-of-{len(lanes):05d}{SUFFIX}": share for lane, share in enumerate(lanes) if share}
    with ThreadPoolExecutor(len(lanes)) as pool:
        facts = pool.map(lambda name: _write(folder / name, files[name]), files)
        return dict(zip(files, facts, strict=True))


def _write(path: Path, blocks: Sequence[Block]) -> dict[str, Any]:
    blocks = sorted(blocks, key=lambda block: -block.values.itemsize)  # so that each begins at a multiple of its item's size
    parts = [_header(blocks), *(block.values.contiguous().view(-1).view(torch.uint8) for block in blocks)]
    sums, written = PageSums(), 0
    memory = mmap.mmap(-1, PIECE_BYTES)
    with _opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file, memoryview(memory) as view:
        with suppress(OSError):  # where the file system cannot do without
            fcntl.fcntl(file, fcntl.F_SETFL, DIRECT)
        for filled in _fill(torch.frombuffer(memory, dtype=torch.uint8), parts):
            whole, done = -(-filled // ALIGNED_BYTES) * ALIGNED_BYTES, 0
            view[filled:whole] = bytes(whole - filled)
            sums.update(view[:filled])
            while done < whole:
                done += _write_at(file, view[done:whole], written + done)
            written += filled
        os.truncate(file, written)  # the last piece was written up to a multiple of the page
        os.fsync(file)
    return {"bytes": written, "sums": sums.hexdigest()}


def _write_at(file: int, piece: memoryview, offset: int) -> int:
    """Write at a place in a file, through the page cache from now on where it cannot be left out; the bytes that were written.

    Some file systems say so only then; and where a full disk took a part of a piece, the rest does not begin at a page.
    """
    try:
        return os.pwrite(file, piece, offset)
    except OSError as error:
        if error.errno != errno.EINVAL or not fcntl.fcntl(file, fcntl.F_GETFL) & DIRECT:
            raise
        fcntl.fcntl(file, fcntl.F_SETFL, 0)
        return os.pwrite(file, piece, offset)


def _fill(buffer: Tensor, parts: Sequence[Tensor]) -> Iterator[int]:
    """Let bytes flow through a buffer; each time that it is full, and at the end, how far it is filled."""
    filled = 0
    for part in parts:
        taken = 0
        while taken < part.numel():
            count = min(part.numel() - taken, buffer.numel() - filled)
            buffer[filled : filled + count].copy_(part[taken : taken + count])
            filled, taken = filled + count, taken + count
            if filled == buffer.numel():
                yield filled
                filled = 0
    if filled:
        yield filled


def _header(blocks: Sequence[Block]) -> Tensor:
    """Length and header of a safetensors file, up to a multiple of the page's size."""
    places = {block.name: {"saved_offsets": block.offsets} for block in blocks}
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json.dumps(places)}}
    end = 0
    for block in blocks:
        begin, end = end, end + block.values.nbytes
        header[block.name] = {
            "dtype": NAMES[block.values.dtype],
            "shape": list(block.values.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text = text.ljust(-(-(len(text) + 8) // ALIGNED_BYTES) * ALIGNED_BYTES - 8)
    return torch.frombuffer(bytearray(len(text).to_bytes(8, "little") + text), dtype=torch.uint8)


def read_blocks(folder: Path, files: Mapping[str, Mapping[str, Any]], blocks: Sequence[Block], *, to_check: Collection[str] = ()) -> None:
    """Read blocks in place, whatever boxes of their tensors are in which file.

    Args:
        folder: of the files.
        files: all of them, with their sizes and checksums, as `write_blocks` gives them.
        blocks: to be filled.
        to_check: files that are read whole, and compared with their checksum.

    Raises:
        DamagedFileError: a file of `to_check` has another checksum; a header makes no sense; or a block is not there as a whole.
    """
    wanted = {block.name: _with_rows(block) for block in blocks if block.values.numel()}
    missing = {name: block.values.numel() for name, block in wanted.items()}
    with ThreadPoolExecutor(LANES) as pool:
        names = [name for name in files if name.endswith(SUFFIX)]
        targets: dict[str, list[Target]] = {name: [] for name in to_check}
        for name, stored in zip(names, pool.map(lambda name: _stored(folder / name), names), strict=True):
            found = [Target.of(wanted[block.name], block) for block in stored if block.name in wanted]
            targets[name] = [target for target in found if target is not None]
            for target in targets[name]:
                missing[target.name] -= target.values.numel()
        to_read = [name for name in targets if targets[name] or name in to_check]
        deque(pool.map(lambda name: _read(folder / name, files[name], targets[name], checks=name in to_check), to_read), maxlen=0)
    for name, numbers in missing.items():
        if numbers:
            raise DamagedFileError(f"{name} is not there as a whole")


def _with_rows(block: Block) -> Block:
    """A block of at least one dimension."""
    return block if block.offsets else Block(block.name, (0,), block.values.view(1))


def _stored(path: Path) -> list[Stored]:
    """What the header of a file says.

    Raises:
        DamagedFileError: it makes no sense.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, MOST_HEADER_BYTES)))
        places = json.loads(header.pop("__metadata__")["DCP_SHARDING_INFO"])
        return [_entry(name, entry, places[name]["saved_offsets"], 8 + length) for name, entry in header.items()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedFileError(f"{path.name} has a header that makes no sense") from error


def _entry(name: str, entry: Mapping[str, Any], offsets: Sequence[int], first_byte: int) -> Stored:
    dtype, shape, (begin, end) = TYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
    if len(offsets) != len(shape) or end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(name)
    return Stored(name, dtype, tuple(offsets) or (0,), tuple(shape) or (1,), first_byte + begin)


def _read(path: Path, facts: Mapping[str, Any], targets: Sequence[Target], *, checks: bool) -> None:
    """Fill targets from a file, and compare all of it with its checksum, if it `checks` that.

    Raises:
        DamagedFileError: it is another one, or the file ends too soon.
    """
    size = facts["bytes"]
    checksum, expected = expected_checksum(facts) if checks else (None, None)
    waiting = deque(sorted(targets, key=lambda target: target.first))
    memory = mmap.mmap(-1, PIECE_BYTES)
    buffer = torch.frombuffer(memory, dtype=torch.uint8)
    with _opened(path, os.O_RDONLY) as file, memoryview(memory) as view:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_SEQUENTIAL)  # the kernel reads further ahead
        for begin in range(0, size, PIECE_BYTES):
            end = min(begin + PIECE_BYTES, size)
            if checksum is None and not (waiting and waiting[0].first < end):
                continue
            there = 0
            while begin + there < end:
                more = os.preadv(file, [view[there : end - begin]], begin + there)
                if not more:
                    raise DamagedFileError(f"{path.name} ends too soon")
                there += more
            if checksum is not None:
                checksum.update(view[: end - begin])
            while waiting and waiting[0].first < end:
                waiting[0].take(buffer[: end - begin], begin)
                if waiting[0].last > end:
                    break
                waiting.popleft()
    if checksum is not None and checksum.hexdigest() != expected:
        raise DamagedFileError(f"{path.name} has another checksum")


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    file = os.open(path, flags, 0o666)
    try:
        yield file
    finally:
        os.close(file)
