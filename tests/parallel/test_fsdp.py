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
