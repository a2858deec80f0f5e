"""Headers of tensor files: which shards a file holds, and where they lie in their tensors.

The format of the offsets is the one of torch.distributed.checkpoint, so its reader can read these
files too.
"""

import json
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rampcli.checkpoint.shards import Shard
from rampcli.errors import DamagedFileError
from rampcli.files.records import parse_json
from rampcli.files.safetensors_header import METADATA, is_counts, read_header
from rampcli.models.huggingface import FLOATS

ALIGNED_BYTES = mmap.PAGESIZE
"""Offsets and sizes of direct writes are multiples of this, and so is the size of a header."""
OFFSETS = "DCP_SHARDING_INFO"
"""Metadata field with the offsets of each shard in its tensor."""
TYPES = FLOATS | {"I64": torch.int64}
NAMES = {dtype: name for name, dtype in TYPES.items()}


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
            "dtype": NAMES[shard.values.dtype],
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
