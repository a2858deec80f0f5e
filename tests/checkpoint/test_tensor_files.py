import errno
import fcntl
import json
import math
import mmap
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from rampcli.checkpoint.shards import Shard, Tiling
from rampcli.checkpoint.tensor_files import TensorFiles, file_header, write_shards
from rampcli.errors import DamagedFileError
from rampcli.files.checksums import SUMMED_PIECE_BYTES, PageSums, page_sums


def whole_shard(name: str, tensor: torch.Tensor) -> Shard:
    return Shard(name, (0,) * tensor.ndim, tensor, tuple(tensor.shape))


def read(folder: Path, files: dict[str, dict], *shards: Shard, checks: bool = True) -> None:
    """Fills shards from files, whose checksums are compared unless `checks` is False."""
    TensorFiles.open(folder, files).read(shards, to_check=files if checks else ())


def grid(name: str, tensor: torch.Tensor, cuts: list[list[int]]) -> list[Shard]:
    """Returns a tensor as shards, cut at the given indices of each dimension."""
    shards = [whole_shard(name, tensor)]
    for axis, places in enumerate(cuts):
        edges = sorted({0, *places, tensor.shape[axis]})
        shards = [
            replace(
                shard,
                offsets=(*shard.offsets[:axis], first, *shard.offsets[axis + 1 :]),
                values=shard.values.narrow(axis, first, last - first),
            )
            for shard in shards
            for first, last in pairwise(edges)
        ]
    return shards


@st.composite
def tensors_and_cuts(draw):
    shape = draw(st.lists(st.integers(1, 7), max_size=3))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.int64]))
    tensor = torch.arange(math.prod(shape)).reshape(shape).to(dtype)
    cuts = st.tuples(*(st.lists(st.integers(1, size), max_size=2) for size in shape)).map(list)
    return tensor, draw(cuts), draw(cuts)


@given(cases=st.lists(tensors_and_cuts(), min_size=1, max_size=3))
def test_shards_are_read_from_files_that_are_sharded_differently(cases, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    ranks: dict[int, list[Shard]] = {}
    for number, (tensor, cuts, _) in enumerate(cases):
        for rank, shard in enumerate(grid(str(number), tensor, cuts)):
            ranks.setdefault(rank, []).append(shard)
    files = {
        name: facts
        for rank, shards in ranks.items()
        for name, facts in write_shards(folder, shards, rank=rank).items()
    }
    for number, (tensor, _, cuts) in enumerate(cases):
        for shard in grid(str(number), torch.full_like(tensor, -1), cuts):
            read(folder, files, shard)
            place = tuple(
                slice(first, first + size)
                for first, size in zip(shard.offsets, shard.values.shape, strict=True)
            )
            assert torch.equal(shard.values, tensor[place])


@pytest.fixture
def tensors():
    """Tensors of many pieces, of less than one, and of one number."""
    generator = torch.Generator().manual_seed(0)
    large = {
        f"large.{number}": torch.randn(3_000_000 + number, generator=generator)
        for number in range(7)
    }
    return {
        **large,
        "matrix": torch.randn(1000, 300, generator=generator).T,
        "step": torch.tensor(7.0),
    }


@pytest.fixture
def shards(tensors):
    return [whole_shard(name, tensor) for name, tensor in tensors.items()]


def test_large_tensors_are_written_in_parallel_into_files_that_other_libraries_read(
    shards,
    tensors,
    tmp_path,
    alone,  # noqa: ARG001
):
    files = write_shards(tmp_path, shards, rank=3)
    assert sorted(files) == [
        f"shard-00004-model-0000{lane}-of-00002.safetensors" for lane in (1, 2)
    ]
    assert {name: facts["bytes"] for name, facts in files.items()} == {
        path.name: path.stat().st_size for path in tmp_path.iterdir()
    }
    read = {name: tensor for file in files for name, tensor in load_file(tmp_path / file).items()}
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
    by_torch = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    load(by_torch, storage_reader=HuggingFaceStorageReader(str(tmp_path)))
    assert all(torch.equal(by_torch[name], tensor) for name, tensor in tensors.items())


def test_files_that_torch_has_written_are_read(shards, tensors, tmp_path, alone):  # noqa: ARG001
    save(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        storage_writer=HuggingFaceStorageWriter(str(tmp_path), save_distributed=True),
    )
    files = {path.name: {"bytes": path.stat().st_size} for path in tmp_path.iterdir()}
    read = [replace(shard, values=torch.zeros_like(shard.values)) for shard in shards]
    TensorFiles.open(tmp_path, files).read(read)
    assert all(torch.equal(shard.values, tensors[shard.name]) for shard in read)


def test_damage_to_any_byte_is_found(tmp_path):
    shard = whole_shard("weight", torch.arange(600.0).reshape(20, 30))
    ((name, facts),) = write_shards(tmp_path, [shard], rank=0).items()
    content = (tmp_path / name).read_bytes()
    header = 8 + len(content[8:].split(b"   ")[0])
    for place in [*range(header), *range(header, len(content), 97), len(content) - 1]:
        for damaged in (content[place] ^ 1, content[place] ^ 0x80):
            (tmp_path / name).write_bytes(content[:place] + bytes([damaged]) + content[place + 1 :])
            with pytest.raises(DamagedFileError):
                read(tmp_path, {name: facts}, shard)


def written(
    folder: Path, boxes: Sequence[tuple[tuple[int, ...], torch.Tensor]], whole: tuple[int, ...]
) -> dict[str, dict]:
    """Writes shards of one tensor, each into a file of its own."""
    files: dict[str, dict] = {}
    for rank, (offsets, values) in enumerate(boxes):
        files |= write_shards(folder, [Shard("weight", offsets, values, whole)], rank=rank)
    return files


WRONG_SHARDS = {
    "a part is missing": [((0,), 4), ((5,), 5)],
    "the first half twice": [((0,), 5), ((0,), 5)],
    "parts overlap, and there are more numbers than in the tensor": [((0,), 6), ((5,), 5)],
    "one part more than the tensor has": [((0,), 5), ((5,), 5), ((10,), 2)],
    "a part beyond the end": [((0,), 5), ((5,), 6)],
    "nothing": [],
}


@pytest.mark.parametrize("boxes", WRONG_SHARDS.values(), ids=WRONG_SHARDS)
def test_shards_that_do_not_tile_a_tensor_are_refused_before_reading(tmp_path, boxes):
    files = written(tmp_path, [(offsets, torch.ones(size)) for offsets, size in boxes], (10,))
    for first, values in ((0, torch.zeros(10)), (5, torch.zeros(5))):
        with pytest.raises(DamagedFileError, match="are missing or stored twice"):
            read(tmp_path, files, Shard("weight", (first,), values, (10,)))
        assert not values.any()


@pytest.mark.parametrize(
    "values", [torch.zeros(10, dtype=torch.float64), torch.zeros(10, 1), torch.tensor(1.0)]
)
def test_a_tensor_with_another_type_or_number_of_dimensions_is_refused(tmp_path, values):
    files = write_shards(tmp_path, [whole_shard("weight", values)], rank=0)
    with pytest.raises(DamagedFileError):
        read(tmp_path, files, whole_shard("weight", torch.zeros(10)))


@given(
    cuts=st.lists(st.integers(1, 11), max_size=5),
    move=st.integers(-2, 2),
    chosen=st.integers(0, 5),
    axis=st.integers(0, 1),
)
def test_boxes_tile_a_tensor_until_one_is_moved(cuts, move, chosen, axis):
    boxes = grid("weight", torch.zeros(12, 12), [cuts, cuts])
    tiling, moved = Tiling((12, 12)), boxes[chosen % len(boxes)]
    for box in boxes:
        offsets = list(box.offsets)
        if box is moved:
            offsets[axis] += move
        tiling.add(tuple(offsets), tuple(box.values.shape))
    assert tiling.is_exact is (move == 0)


def test_finding_shards_needs_no_memory_for_them(tmp_path):
    files = write_shards(tmp_path, [whole_shard("weight", torch.ones(20, 30))], rank=0)
    for shape, fits in (((20, 30), True), ((20, 31), False), ((10**7, 10**7), False)):
        shard = whole_shard("weight", torch.empty(shape, device="meta"))
        if fits:
            assert sum(map(len, TensorFiles.open(tmp_path, files).find([shard]).values())) == 1
        else:
            with pytest.raises(DamagedFileError):
                TensorFiles.open(tmp_path, files).find([shard])


def test_thousands_of_shards_of_a_tensor_are_read_in_seconds(tmp_path):
    """Comparing every pair would take minutes."""
    tensor = torch.arange(5000.0 * 8).reshape(5000, 8)
    files = {}
    for row in range(5000):
        content = (
            file_header([Shard("weight", (row, 0), tensor[row : row + 1], (5000, 8))])
            .numpy()
            .tobytes()
            + tensor[row].numpy().tobytes()
        )
        (tmp_path / f"{row}.safetensors").write_bytes(content)
        files[f"{row}.safetensors"] = {"bytes": len(content)}
    read, began = torch.zeros_like(tensor), time.process_time()
    TensorFiles.open(tmp_path, files).read([whole_shard("weight", read)])
    assert time.process_time() - began < 20
    assert torch.equal(read, tensor)


def saved(folder: Path, header: dict, numbers: int = 10) -> dict[str, dict]:
    """Writes a file with a given header and `numbers` fp32 zeros. Returns its manifest facts."""
    text = json.dumps(header).encode()
    content = len(text).to_bytes(8, "little") + text + bytes(4 * numbers)
    (folder / "shard.safetensors").write_bytes(content)
    return {"shard.safetensors": {"bytes": len(content), "sums": page_sums(content)}}


def header_of(offsets: Any = (0,), **entry: Any) -> dict:
    places = json.dumps({"weight": {"saved_offsets": offsets}})
    return {
        "__metadata__": {"DCP_SHARDING_INFO": places},
        "weight": {"dtype": "F32", "shape": [10], "data_offsets": [0, 40], **entry},
    }


WRONG_HEADERS = {
    "offsets are negative": header_of([-5]),
    "offsets are booleans": header_of([False]),
    "offsets are fractions": header_of([0.0]),
    "offsets are too many": header_of([0, 0]),
    "offsets are not a list": header_of("0"),
    "places are not a mapping": header_of() | {"__metadata__": {"DCP_SHARDING_INFO": "[]"}},
    "a place is not a mapping": header_of()
    | {"__metadata__": {"DCP_SHARDING_INFO": '{"weight": 1}'}},
    "a place is missing": header_of() | {"__metadata__": {"DCP_SHARDING_INFO": "{}"}},
    "places are missing": header_of() | {"__metadata__": {}},
    "places are nested too deeply": header_of()
    | {"__metadata__": {"DCP_SHARDING_INFO": "[" * 100_000}},
    "places are half a character": header_of() | {"__metadata__": {"DCP_SHARDING_INFO": "\ud800"}},
    "a type that no checkpoint has": header_of(dtype="U32"),
}


@pytest.mark.parametrize("header", WRONG_HEADERS.values(), ids=WRONG_HEADERS)
def test_an_invalid_header_gives_one_error(tmp_path, header):
    files = saved(tmp_path, header)
    with pytest.raises(DamagedFileError):
        read(tmp_path, files, whole_shard("weight", torch.zeros(10)))


def test_a_valid_handmade_header_is_read(tmp_path):
    values = torch.ones(10)
    read(tmp_path, saved(tmp_path, header_of()), whole_shard("weight", values))
    assert not values.any()


def test_a_file_that_shrinks_while_it_is_read_gives_one_error(tmp_path, monkeypatch):
    files = write_shards(tmp_path, [whole_shard("weight", torch.ones(6_000_000))], rank=0)
    preadv = os.preadv

    def shortening(file, buffers, offset):
        for name in files:
            os.truncate(tmp_path / name, 10_000_000)
        return preadv(file, buffers, offset)

    monkeypatch.setattr(os, "preadv", shortening)
    with pytest.raises(DamagedFileError, match="ends too soon"):
        read(tmp_path, files, whole_shard("weight", torch.zeros(6_000_000)), checks=False)


def test_a_link_in_place_of_a_file_to_write_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "shard-00001-model-00001-of-00001.safetensors").symlink_to("precious")
    with pytest.raises(OSError, match="File exists"):
        write_shards(tmp_path, [whole_shard("weight", torch.ones(10))], rank=0)
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_system_without_huge_pages_writes_the_same_files(tmp_path, monkeypatch):
    shard, written = whole_shard("weight", torch.arange(600.0)), []
    for name in ("with", "refused", "unknown"):
        (tmp_path / name).mkdir()
        if name == "refused":
            monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 9999)
        elif name == "unknown":
            monkeypatch.delattr(mmap, "MADV_HUGEPAGE")
        written.append(write_shards(tmp_path / name, [shard], rank=0))
    assert written[0] == written[1] == written[2]


def test_the_next_piece_is_hashed_while_one_is_written_and_does_not_replace_it(
    tmp_path, monkeypatch
):
    numbers, pieces = 9 * SUMMED_PIECE_BYTES // 8, 5  # of four bytes each, which fill 4.5 pieces
    pwrite, update, hashed = os.pwrite, PageSums.update, [threading.Event() for _ in range(pieces)]
    counts = count()

    def late(file, piece, offset):
        later = offset // SUMMED_PIECE_BYTES + 1
        assert later == len(hashed) or hashed[later].wait(60), "the next piece waits for this one"
        time.sleep(0.01)  # the piece after the next one would be copied by now
        return pwrite(file, piece, offset)

    def counting(sums, piece):
        update(sums, piece)
        hashed[next(counts)].set()

    monkeypatch.setattr(os, "pwrite", late)
    monkeypatch.setattr(PageSums, "update", counting)
    shard = whole_shard("weight", torch.arange(numbers, dtype=torch.float32))
    files = write_shards(tmp_path, [shard], rank=0)
    monkeypatch.undo()
    found = whole_shard("weight", torch.zeros(numbers))
    read(tmp_path, files, found)
    assert torch.equal(found.values, shard.values)


@pytest.mark.parametrize("short", [False, True], ids=["refused", "written in part"])
def test_a_refused_direct_write_falls_back_to_the_page_cache(tmp_path, monkeypatch, short):
    """Some file systems refuse direct writes at the first write, or write an unaligned part."""
    pwrite, sizes = os.pwrite, []

    def as_that_file_system_does(file, piece, offset):
        past_the_cache = fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT
        if past_the_cache and (not short or offset % mmap.PAGESIZE):
            raise OSError(errno.EINVAL, "Invalid argument")
        if past_the_cache:
            fcntl.fcntl(file, fcntl.F_SETFL, 0)
            sizes.append(pwrite(file, piece[:100], offset))
            fcntl.fcntl(file, fcntl.F_SETFL, os.O_DIRECT)
            return sizes[-1]
        return pwrite(file, piece, offset)

    monkeypatch.setattr(os, "pwrite", as_that_file_system_does)
    shard = whole_shard("weight", torch.arange(600.0).reshape(20, 30))
    files = write_shards(tmp_path, [shard], rank=0)
    monkeypatch.undo()
    assert bool(sizes) is short
    found = whole_shard("weight", torch.zeros(20, 30))
    read(tmp_path, files, found)
    assert torch.equal(found.values, shard.values)
