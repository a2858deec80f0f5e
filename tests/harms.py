"""Ways to damage a checkpoint: at random, or with a manifest made to match."""

import os
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file

from rampcli.checkpoint.shards import shard_of
from rampcli.checkpoint.tensor_files import write_shards
from rampcli.files.checksums import page_sums
from rampcli.files.guarded_folder import write_json
from rampcli.runs.manifest import MANIFEST, Checkpoint


def cut(checkpoint: Checkpoint) -> None:
    file = tensor_file(checkpoint)
    file.write_bytes(file.read_bytes()[:-8])


def flip(checkpoint: Checkpoint) -> None:
    content = bytearray(tensor_file(checkpoint).read_bytes())
    content[-1] ^= 1
    tensor_file(checkpoint).write_bytes(content)


def remove(checkpoint: Checkpoint) -> None:
    tensor_file(checkpoint).unlink()


def put_a_fifo_in_place(checkpoint: Checkpoint) -> None:
    tensor_file(checkpoint).unlink()
    os.mkfifo(tensor_file(checkpoint))


def cut_with_an_honest_manifest(checkpoint: Checkpoint) -> None:
    cut(checkpoint)
    make_honest(checkpoint)


def leave_a_tensor_out_with_an_honest_manifest(checkpoint: Checkpoint) -> None:
    rewrite(checkpoint, lambda tensors: tensors.pop("model.norm.weight"))


def double_a_tensor_with_an_honest_manifest(checkpoint: Checkpoint) -> None:
    file = tensor_file(checkpoint)
    file.with_name("shard-00002-model-00001-of-00001.safetensors").write_bytes(file.read_bytes())
    make_honest(checkpoint)


def change_a_shape_with_an_honest_manifest(checkpoint: Checkpoint) -> None:
    rewrite(
        checkpoint,
        lambda tensors: tensors.update({"model.norm.weight": tensors["model.norm.weight"][:-1]}),
    )


def change_a_type_with_an_honest_manifest(checkpoint: Checkpoint) -> None:
    rewrite(
        checkpoint,
        lambda tensors: tensors.update({"model.norm.weight": tensors["model.norm.weight"].long()}),
    )


def damage_the_manifest(checkpoint: Checkpoint) -> None:
    (checkpoint.path / MANIFEST).write_text("[" * 100_000)


def tensor_file(checkpoint: Checkpoint) -> Path:
    return checkpoint.path / "shard-00001-model-00001-of-00001.safetensors"


def rewrite(checkpoint: Checkpoint, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Changes the tensors of a checkpoint and updates the manifest to match."""
    tensors = load_file(tensor_file(checkpoint))
    change(tensors)
    tensor_file(checkpoint).unlink()
    write_shards(
        checkpoint.path, [shard_of(name, tensor) for name, tensor in tensors.items()], rank=0
    )
    make_honest(checkpoint)


def make_honest(checkpoint: Checkpoint) -> None:
    contents = {path.name: path.read_bytes() for path in checkpoint.path.glob("[st]*")}
    files = {
        name: {"bytes": len(content), "sums": page_sums(content)}
        for name, content in contents.items()
    }
    write_json(
        checkpoint.path / MANIFEST, checkpoint.manifest | {"files": checkpoint.files | files}
    )


OF_FILES = (cut, flip, remove, put_a_fifo_in_place)
BEHIND_AN_HONEST_MANIFEST = (
    cut_with_an_honest_manifest,
    leave_a_tensor_out_with_an_honest_manifest,
    double_a_tensor_with_an_honest_manifest,
    change_a_shape_with_an_honest_manifest,
    change_a_type_with_an_honest_manifest,
)
HARMS = {
    harm.__name__: harm for harm in (*OF_FILES, *BEHIND_AN_HONEST_MANIFEST, damage_the_manifest)
}
