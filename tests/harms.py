"""Ways to damage a checkpoint: at random, and by someone who makes the manifest fit."""

import os
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file

from rampcli.checkpoint.shards import block_of
from rampcli.checkpoint.tensor_files import write_blocks
from rampcli.checksums import page_sums
from rampcli.own_folder import write_json
from rampcli.run_directory import MANIFEST, Checkpoint


def cut(checkpoint: Checkpoint) -> None:
    shard = shard_of(checkpoint)
    shard.write_bytes(shard.read_bytes()[:-8])


def flip(checkpoint: Checkpoint) -> None:
    content = bytearray(shard_of(checkpoint).read_bytes())
    content[-1] ^= 1
    shard_of(checkpoint).write_bytes(content)


def remove(checkpoint: Checkpoint) -> None:
    shard_of(checkpoint).unlink()


def put_a_fifo_in_place(checkpoint: Checkpoint) -> None:
    shard_of(checkpoint).unlink()
    os.mkfifo(shard_of(checkpoint))


def cut_with_an_honest_manifest(checkpoint: Checkpoint) -> None:
    cut(checkpoint)
    make_honest(checkpoint)


def leave_a_tensor_out_with_an_honest_manifest(checkpoint: Checkpoint) -> None:
    rewrite(checkpoint, lambda tensors: tensors.pop("model.norm.weight"))


def double_a_tensor_with_an_honest_manifest(checkpoint: Checkpoint) -> None:
    shard = shard_of(checkpoint)
    shard.with_name("shard-00002-model-00001-of-00001.safetensors").write_bytes(shard.read_bytes())
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


def shard_of(checkpoint: Checkpoint) -> Path:
    return checkpoint.path / "shard-00001-model-00001-of-00001.safetensors"


def rewrite(checkpoint: Checkpoint, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the tensors of a checkpoint, and make the manifest fit."""
    tensors = load_file(shard_of(checkpoint))
    change(tensors)
    shard_of(checkpoint).unlink()
    write_blocks(
        checkpoint.path, [block_of(name, tensor) for name, tensor in tensors.items()], rank=0
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
