import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from parallel.overlapped import (
    average_of_unusual_weights,
    gradient_of_two_passes,
    gradient_without_a_layer,
    lives_on,
    operations,
)
from rampcli.data.loader import MicroBatch
from ranks import run_ranks


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


OPERATIONS = [
    "compute",  # the forward pass and the head
    "average gradients",  # of the head
    "compute",  # layer 1
    "average gradients",
    "compute",  # layer 0
    "average gradients",  # of layer 0, then of the embedding
    "have averages",
]


def test_a_layer_computes_while_gradients_are_averaged(tmp_path):
    for names in run_ranks(2, operations, 1, logs=tmp_path):
        assert names == OPERATIONS


def test_gradients_of_passes_add_up(tmp_path):
    assert run_ranks(2, gradient_of_two_passes, 1, logs=tmp_path) == [True, True]


def test_weights_without_a_gradient_are_left_out(tmp_path):
    first, second = run_ranks(2, gradient_without_a_layer, logs=tmp_path)
    assert first == second
    assert {name for name, gradient in first.items() if gradient is None} == {
        name for name in first if name.startswith("layers.0.")
    }


def test_shared_and_frozen_weights_and_any_layout_are_averaged_once(tmp_path):
    for found in run_ranks(2, average_of_unusual_weights, logs=tmp_path):
        assert found.count(None) == 1
        assert set(found) == {None, True}


def test_the_weights_of_a_replicated_model_are_freed(tmp_path):
    assert run_ranks(2, lives_on, logs=tmp_path) == [False, False]
