"""The tensor axis: every layer split by heads and by width, the sequence between them (sequence parallel), and the loss by vocabulary.

Megatron-LM's scheme (arXiv 1909.08053, 2205.05198), by torch's styles.
"""

from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatchcase

import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)


def styles() -> dict[str, ParallelStyle]:
    """What to do with the modules of a decoder, by patterns of their names. Between layers, a rank has its part of the sequence."""
    gathered = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    return {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "position_embedding": ColwiseParallel(output_layouts=Shard(-2)),
        "layers.*.attention_norm": SequenceParallel(),
        "layers.*.attention": PrepareModuleInput(
            input_layouts=(Shard(1), None, None, None),
            desired_input_layouts=(Replicate(), None, None, None),
        ),
        "layers.*.attention.query": ColwiseParallel(),
        "layers.*.attention.key": ColwiseParallel(),
        "layers.*.attention.value": ColwiseParallel(),
        "layers.*.attention.query_norm": SequenceParallel(
            sequence_dim=2, use_local_output=True
        ),  # that is, over the heads
        "layers.*.attention.key_norm": SequenceParallel(sequence_dim=2, use_local_output=True),
        "layers.*.attention.output": RowwiseParallel(output_layouts=Shard(1)),
        "layers.*.ffn_norm": SequenceParallel(),
        "layers.*.ffn": gathered,
        "layers.*.ffn.gate": ColwiseParallel(),
        "layers.*.ffn.up": ColwiseParallel(),
        "layers.*.ffn.output": RowwiseParallel(output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(
            input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
        ),
    }


def split_layers(model: nn.Module, mesh: DeviceMesh) -> None:
    """Split a decoder over the ranks of the tensor axis, in place. Its logits are sharded by vocabulary then."""
    if mesh.size() == 1:
        return
    names = [name for name, _ in model.named_modules()]
    plan = {
        name: style
        for pattern, style in styles().items()
        for name in names
        if _matches(name, pattern)
    }
    parallelize_module(model, mesh, plan)
    model.loss = summed_loss_of_shards  # type: ignore[assignment]  # a function, not a module


def summed_loss_of_shards(hidden: Tensor, output: nn.Module, labels: Tensor) -> Tensor:
    """`rampcli.models.loss.summed_loss`, where each rank has some of the vocabulary: its logits for these are there whole."""
    logits, labels = output(hidden).flatten(0, 1).float(), labels.flatten()
    loss = F.cross_entropy(
        logits, labels.where(labels >= 0, -100), ignore_index=-100, reduction="sum"
    )
    assert isinstance(loss, DTensor)
    return loss.full_tensor()


def loss_over(mesh: DeviceMesh) -> AbstractContextManager[None]:
    """The context in which a loss of such logits is computed, and its backward pass is run."""
    context: AbstractContextManager[None] = loss_parallel() if mesh.size() > 1 else nullcontext()
    return context


def _matches(name: str, pattern: str) -> bool:
    return name.count(".") == pattern.count(".") and fnmatchcase(name, pattern)
