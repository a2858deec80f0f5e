import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from rampcli.data.loader import MicroBatch


def test_bf16_computes_in_bf16_and_keeps_fp32_weights(small_llama, build_passes):
    small_llama.trainer.precision = "bf16"
    (model,) = build_passes(small_llama).parts
    assert isinstance(model, FSDPModule)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model(torch.zeros(1, 8, dtype=torch.int64)).dtype is torch.bfloat16


def test_one_rank_in_fp32_stays_a_plain_model(small_llama, build_passes):
    (model,) = build_passes(small_llama).parts
    assert not isinstance(model, FSDPModule)
    assert model(torch.zeros(1, 8, dtype=torch.int64)).dtype is torch.float32


def test_after_a_validation_a_rank_holds_only_its_shard(small_llama, build_passes):
    small_llama.trainer.precision = "bf16"
    passes = build_passes(small_llama)
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    passes.forward([MicroBatch(tokens, tokens)])
    assert all(isinstance(parameter, DTensor) for parameter in passes.parts[0].parameters())


def test_embedding_and_head_are_not_gathered_while_a_layer_computes(small_llama, build_passes):
    """Each can have more weights than a layer."""
    small_llama.trainer.precision = "bf16"
    passes = build_passes(small_llama)
    (model,) = passes.parts
    assert model.embedding is not None
    assert model.output is not None
    gathered = []

    def note(*_):
        weights = {"embedding": model.embedding.weight, "head": model.output.weight}
        gathered.extend(name for name, weight in weights.items() if not isinstance(weight, DTensor))

    for layer in model.layers.values():
        layer.register_forward_hook(note)
        layer.register_full_backward_hook(note)
    model.output.register_forward_hook(note)
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    passes.forward_backward([MicroBatch(tokens, tokens)], scale=1.0)
    assert gathered == ["head"]  # noted at its own call
