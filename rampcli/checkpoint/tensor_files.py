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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rampcli.checkpoint.shards import Block, Tiling, overlap
from rampcli.checksums import PIECE_BYTES, PageSums, expected_checksum
from rampcli.errors import DamagedFileError
from rampcli.own_folder import OwnFolder, open_to_read
from rampcli.records import parse_json
from rampcli.safetensors_header import METADATA, is_counts, read_header

SUFFIX = ".safetensors"
LANES = 4
"""Files that a rank writes, or reads, at a time."""
LEAST_BYTES = 32 * 2**20
"""Of one rank's bytes in a file; more files than that are not worth it."""
ALIGNED_BYTES = mmap.PAGESIZE
"""What writes past the page cache are multiples of, in the file and in memory."""
DIRECT = getattr(os, "O_DIRECT", 0)
PLACES = "DCP_SHARDING_INFO"
"""Of the metadata: where each block is in its tensor."""
TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
}
NAMES = {dtype: name for name, dtype in TYPES.items()}


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
        bytes: that have come so far: those of `values` where these are the rows as they stand in the file.
    """

    name: str
    values: Tensor
    columns: tuple[slice, ...]
    shape: tuple[int, ...]
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
            first=stored.first_byte + rows.start * row_bytes,
            last=stored.first_byte + rows.stop * row_bytes,
        )

    def take(self, piece: Tensor, begin: int) -> None:
        """Take what there is for it in the piece that begins at byte `begin` of the file. Pieces come in their order."""
        if self.bytes is None:
            is_direct = self.values.shape == self.shape and self.values.is_contiguous()
            rows = self.values if is_direct else torch.empty(self.shape, dtype=self.values.dtype)
            self.bytes = rows.view(-1).view(torch.uint8)
        start, stop = max(self.first, begin), min(self.last, begin + len(piece))
        self.bytes[start - self.first : stop - self.first].copy_(
            piece[start - begin : stop - begin]
        )
        if stop == self.last:
            rows = self.bytes.view(self.values.dtype).view(self.shape)
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
    files = {
        f"shard-{rank + 1:05d}-model-{lane + 1:05d}-of-{len(lanes):05d}{SUFFIX}": share
        for lane, share in enumerate(lanes)
        if share
    }
    with ThreadPoolExecutor(len(lanes)) as pool:
        facts = pool.map(lambda name: _write(folder / name, files[name]), files)
        return dict(zip(files, facts, strict=True))


def _write(path: Path, blocks: Sequence[Block]) -> dict[str, Any]:
    blocks = sorted(
        blocks, key=lambda block: -block.values.itemsize
    )  # so that each begins at a multiple of its item's size
    parts = [
        _header(blocks),
        *(block.values.contiguous().view(-1).view(torch.uint8) for block in blocks),
    ]
    sums, written = PageSums(), 0
    memory = mmap.mmap(-1, PIECE_BYTES)
    descriptor = OwnFolder(path.parent).open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with os.fdopen(descriptor, "wb", buffering=0) as opened, memoryview(memory) as view:
        file = opened.fileno()
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
    header: dict[str, Any] = {
        METADATA: {"format": "pt", "DCP_VERSION": "1.0", PLACES: json.dumps(places)}
    }
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


def find_blocks(
    folder: Path, files: Mapping[str, Mapping[str, Any]], blocks: Sequence[Block]
) -> dict[str, list[Target]]:
    """Returns what each file holds of the blocks. Only headers are read, so the blocks may be on the meta device.

    Args:
        folder: of the files.
        files: all of them, with their sizes, as `write_blocks` gives them.
        blocks: the boxes that are wanted.

    Raises:
        DamagedFileError: a file is not a whole safetensors file of its size; or the boxes in the files do not make up the tensors of the
            blocks, in their type and shape, each number once.
    """
    wanted = {block.name: _with_rows(block) for block in blocks if block.values.numel()}
    tilings = {name: Tiling(block.whole) for name, block in wanted.items()}
    names = [name for name in files if name.endswith(SUFFIX)]
    targets: dict[str, list[Target]] = {}
    with ThreadPoolExecutor(LANES) as pool:
        for name, boxes in zip(
            names, pool.map(lambda name: _stored(folder / name, files[name]), names), strict=True
        ):
            for box in boxes:
                if (block := wanted.get(box.name)) is None:
                    continue
                if box.dtype != block.values.dtype or len(box.shape) != len(block.whole):
                    raise DamagedFileError(
                        f"{name} holds {box.name} in another type or shape than the model has it"
                    )
                tilings[box.name].lay(box.offsets, box.shape)
                if (target := Target.of(block, box)) is not None:
                    targets.setdefault(name, []).append(target)
    for name, tiling in tilings.items():
        if not tiling.is_exact:
            raise DamagedFileError(
                f"the files do not hold each number of {name} once: {wanted[name].whole} is its shape"
            )
    return targets


def read_blocks(
    folder: Path,
    files: Mapping[str, Mapping[str, Any]],
    blocks: Sequence[Block],
    *,
    to_check: Collection[str] = (),
) -> None:
    """Read blocks in place, whatever boxes of their tensors are in which file.

    Args:
        folder: of the files.
        files: all of them, with their sizes and checksums, as `write_blocks` gives them.
        blocks: to be filled.
        to_check: files that are read whole, and compared with their checksum.

    Raises:
        DamagedFileError: as `find_blocks`, before anything is read; or a file of `to_check` has another checksum.
    """
    targets = find_blocks(folder, files, blocks)
    with ThreadPoolExecutor(LANES) as pool:
        to_read = [name for name in files if name in targets or name in to_check]
        deque(
            pool.map(
                lambda name: _read(
                    folder / name, files[name], targets.get(name, ()), checks=name in to_check
                ),
                to_read,
            ),
            maxlen=0,
        )


def _with_rows(block: Block) -> Block:
    """Returns the block, as one of one dimension if it has none."""
    return block if block.offsets else Block(block.name, (0,), block.values.view(1), (1,))


def _stored(path: Path, facts: Mapping[str, Any]) -> list[Stored]:
    """Returns the blocks of a file.

    Raises:
        DamagedFileError: it is not a whole safetensors file of its size, or does not say where its blocks are in their tensors.
    """
    header = read_header(path)
    if header.file_bytes != facts["bytes"]:
        raise DamagedFileError(
            f"{path.name} has {header.file_bytes} bytes instead of {facts['bytes']}"
        )
    if PLACES not in header.metadata:
        raise DamagedFileError(f"{path.name} does not say where its blocks are in their tensors")
    places = parse_json(
        header.metadata[PLACES].encode(errors="surrogatepass"), {}, where=f"{PLACES} of {path.name}"
    )
    blocks = []
    for name, stored in header.tensors.items():
        place = places.get(name)
        offsets = place.get("saved_offsets") if isinstance(place, dict) else None
        if not is_counts(offsets) or len(offsets) != len(stored.shape) or stored.dtype not in TYPES:
            raise DamagedFileError(
                f"{path.name} holds {name} in a type or at a place that no checkpoint has"
            )
        blocks.append(
            Stored(
                name,
                TYPES[stored.dtype],
                tuple(offsets) or (0,),
                stored.shape or (1,),
                stored.begin,
            )
        )
    return blocks


def _read(path: Path, facts: Mapping[str, Any], targets: Sequence[Target], *, checks: bool) -> None:
    """Fill targets from a file, and compare all of it with its checksum, if it `checks` that.

    Raises:
        DamagedFileError: the file has another checksum, or is shorter by now.
    """
    size = facts["bytes"]
    checksum, expected = expected_checksum(facts) if checks else (None, None)
    waiting = deque(sorted(targets, key=lambda target: target.first))
    memory = mmap.mmap(-1, PIECE_BYTES)
    buffer = torch.frombuffer(memory, dtype=torch.uint8)
    with open_to_read(path) as opened, memoryview(memory) as view:
        file = opened.fileno()
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
