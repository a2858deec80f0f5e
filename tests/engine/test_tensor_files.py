import errno
import fcntl
import math
import mmap
import os
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from rampcli.engine.blocks import Block
from rampcli.engine.tensor_files import DamagedFileError, read_blocks, write_blocks


def grid(name: str, tensor: torch.Tensor, cuts: list[list[int]]) -> list[Block]:
    """A tensor in blocks, cut at these places of each dimension."""
    blocks = [Block(name, (0,) * tensor.ndim, tensor)]
    for axis, places in enumerate(cuts):
        edges = sorted({0, *places, tensor.shape[axis]})
        blocks = [
            Block(name, (*block.offsets[:axis], first, *block.offsets[axis + 1 :]), block.values.narrow(axis, first, last - first))
            for block in blocks
            for first, last in pairwise(edges)
        ]
    return blocks


@st.composite
def tensors_and_cuts(draw):
    shape = draw(st.lists(st.integers(1, 7), max_size=3))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.int64]))
    tensor = torch.arange(math.prod(shape)).reshape(shape).to(dtype)
    cuts = st.tuples(*(st.lists(st.integers(1, size), max_size=2) for size in shape)).map(list)
    return tensor, draw(cuts), draw(cuts)


@given(cases=st.lists(tensors_and_cuts(), min_size=1, max_size=3))
def test_any_boxes_of_tensors_are_read_from_any_others(cases, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    ranks: dict[int, list[Block]] = {}
    for number, (tensor, cuts, _) in enumerate(cases):
        for rank, block in enumerate(grid(str(number), tensor, cuts)):
            ranks.setdefault(rank, []).append(block)
    files = {name: facts for rank, blocks in ranks.items() for name, facts in write_blocks(folder, blocks, rank=rank).items()}
    for number, (tensor, _, cuts) in enumerate(cases):
        for block in grid(str(number), torch.full_like(tensor, -1), cuts):
            read_blocks(folder, files, [block], to_check=files)
            place = tuple(slice(first, first + size) for first, size in zip(block.offsets, block.values.shape, strict=True))
            assert torch.equal(block.values, tensor[place])


@pytest.fixture
def tensors():
    """Of many pieces, of less than one, and of one number."""
    generator = torch.Generator().manual_seed(0)
    large = {f"large.{number}": torch.randn(3_000_000 + number, generator=generator) for number in range(7)}
    return {**large, "matrix": torch.randn(1000, 300, generator=generator).T, "step": torch.tensor(7.0)}


@pytest.fixture
def blocks(tensors):
    return [Block(name, (0,) * tensor.ndim, tensor) for name, tensor in tensors.items()]


def test_large_tensors_are_written_side_by_side_into_files_that_other_libraries_read(blocks, tensors, tmp_path, alone):  # noqa: ARG001
    files = write_blocks(tmp_path, blocks, rank=3)
    assert sorted(files) == [f"shard-00004-model-0000{lane}-of-00002.safetensors" for lane in (1, 2)]
    assert {name: facts["bytes"] for name, facts in files.items()} == {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    read = {name: tensor for file in files for name, tensor in load_file(tmp_path / file).items()}
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
    by_torch = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    load(by_torch, storage_reader=HuggingFaceStorageReader(str(tmp_path)))
    assert all(torch.equal(by_torch[name], tensor) for name, tensor in tensors.items())


def test_files_that_torch_has_written_are_read(blocks, tensors, tmp_path, alone):  # noqa: ARG001
    save(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        storage_writer=HuggingFaceStorageWriter(str(tmp_path), save_distributed=True),
    )
    files = {path.name: {"bytes": path.stat().st_size} for path in tmp_path.iterdir()}
    read = [Block(block.name, block.offsets, torch.zeros_like(block.values)) for block in blocks]
    read_blocks(tmp_path, files, read)
    assert all(torch.equal(block.values, tensors[block.name]) for block in read)


def test_damage_to_any_byte_is_found(tmp_path):
    block = Block("weight", (0, 0), torch.arange(600.0).reshape(20, 30))
    ((name, facts),) = write_blocks(tmp_path, [block], rank=0).items()
    content = (tmp_path / name).read_bytes()
    header = 8 + len(content[8:].split(b"   ")[0])
    for place in [*range(header), *range(header, len(content), 97), len(content) - 1]:
        for damaged in (content[place] ^ 1, content[place] ^ 0x80):
            (tmp_path / name).write_bytes(content[:place] + bytes([damaged]) + content[place + 1 :])
            with pytest.raises(DamagedFileError):
                read_blocks(tmp_path, {name: facts}, [block], to_check=[name])


def test_a_tensor_of_which_a_part_is_nowhere_is_not_read_in_silence(tmp_path):
    tensor = torch.arange(10.0)
    files = write_blocks(tmp_path, [Block("weight", (0,), tensor[:4])], rank=0) | write_blocks(
        tmp_path, [Block("weight", (5,), tensor[5:])], rank=1
    )
    with pytest.raises(DamagedFileError, match="weight is not there as a whole"):
        read_blocks(tmp_path, files, [Block("weight", (0,), torch.zeros(10))])
    read_blocks(tmp_path, files, [Block("weight", (5,), torch.zeros(5))])


@pytest.mark.parametrize("short", [False, True], ids=["refused", "written in part"])
def test_where_the_page_cache_cannot_be_left_out_after_all_it_is_not(tmp_path, monkeypatch, short):
    """As of file systems that refuse such a write only when it comes, or that take a part of it which does not end at a page."""
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
    block = Block("weight", (0, 0), torch.arange(600.0).reshape(20, 30))
    files = write_blocks(tmp_path, [block], rank=0)
    monkeypatch.undo()
    assert bool(sizes) is short
    read = Block("weight", (0, 0), torch.zeros(20, 30))
    read_blocks(tmp_path, files, [read], to_check=list(files))
    assert torch.equal(read.values, block.values)
