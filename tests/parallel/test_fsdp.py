import pytest
import torch
from torch.distributed.fsdp import FSDPModule

from rampcli.config.schema import Precision
from rampcli.engine.build import build_model
from rampcli.parallel.mesh import build_mesh

pytestmark = pytest.mark.usefixtures("alone")


def test_bf16_computes_in_bf16_and_keeps_fp32_weights(small_llama):
    small_llama.trainer.precision = Precision.bf16
    mesh = build_mesh(torch.device("cpu"), data_parallel_size=1)
    model = build_model(small_llama, mesh, torch.device("cpu"))
    assert isinstance(model, FSDPModule)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model(torch.zeros(1, 8, dtype=torch.int64)).dtype is torch.bfloat16


def test_one_rank_in_fp32_stays_a_plain_model(small_llama):
    model = build_model(small_llama, build_mesh(torch.device("cpu"), data_parallel_size=1), torch.device("cpu"))
    assert not isinstance(model, FSDPModule)
    assert model(torch.zeros(1, 8, dtype=torch.int64)).dtype is torch.float32
