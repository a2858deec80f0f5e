"""What a part declares is what its module has, computes and keeps."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import prod

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from rampcli.models import attention, decoder
from rampcli.models.attention import RotaryTable
from rampcli.models.decoder import Decoder
from rampcli.models.linear import build_linear
from rampcli.models.parts import MicroBatchPart, Part, layer_parts, outer_parts
from rampcli.settings.model import ModelConfig
from rampcli.settings.model_parts import ACTIVATIONS, NORMS, POSITION_EMBEDDINGS

MODEL = ModelConfig(
    num_layers=1,
    hidden_size=32,
    ffn_hidden_size=56,
    num_attention_heads=4,
    num_query_groups=2,
    vocab_size=48,
)
MODELS = {
    **{name: replace(MODEL, activation=name) for name in ACTIVATIONS},
    **{name: replace(MODEL, normalization=name) for name in NORMS},
    **{name: replace(MODEL, position_embedding=name) for name in POSITION_EMBEDDINGS},
    "biases": replace(MODEL, bias=True),
    "tied": replace(MODEL, tie_embeddings=True),
    "norms of heads": replace(MODEL, qk_norm=True, head_size=6),
}
"""One model for each entry of a table, and for each switch."""
SEQUENCE, SAMPLES = 10, 3
TOKENS = SEQUENCE * SAMPLES


def parts_of(model: ModelConfig) -> Iterator[tuple[str, Part, nn.Module]]:
    """Yields the name of each part, its declaration, and its module."""
    built = Decoder(model, sequence_length=SEQUENCE)
    for name, part in outer_parts(model, sequence_length=SEQUENCE).items():
        yield name, part, built.get_submodule(name)
    for name, part in layer_parts(model).items():
        yield name, part, built.layers["0"].get_submodule(name)


def rotation_of(model: ModelConfig, dtype: torch.dtype = torch.float32) -> Tensor | None:
    """Returns the table of rotations, as FSDP casts it for a layer."""
    if not POSITION_EMBEDDINGS[model.position_embedding].is_rotary:
        return None
    table = RotaryTable(model, sequence_length=SEQUENCE)
    table.fill()
    return table.table.to(dtype)


def forward_of(name: str, module: nn.Module, rotation: Tensor | None) -> Callable[..., Tensor]:
    """Returns a part's forward pass for hidden states."""
    return partial(module, rotation=rotation) if name == "attention" else module


def hidden_states(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(SAMPLES, SEQUENCE, MODEL.hidden_size, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize("name", MODELS)
def test_the_declared_parameters_are_those_of_the_modules(name):
    model = MODELS[name]
    with torch.device("meta"):
        found = list(parts_of(model))
    for part, declared, module in found:
        shapes = [(parameter, tuple(one.shape)) for parameter, one in module.named_parameters()]
        tied = model.tie_embeddings and part == "output"
        assert list(declared.parameters().items()) == ([] if tied else shapes), part
    total = Decoder(model, sequence_length=SEQUENCE)
    assert sum(one.numel() for one in total.parameters()) == sum(
        prod(shape) for _, declared, _ in found for shape in declared.parameters().values()
    )


@pytest.mark.parametrize("name", MODELS)
def test_the_declared_operations_are_those_that_torch_counts(name):
    """The mathematical kernel of attention is the one whose backward pass recomputes nothing."""
    model = MODELS[name]
    for part, declared, module in parts_of(model):
        if part.endswith("embedding"):
            assert declared.flops(SEQUENCE) == 0
            continue
        forward = forward_of(part, module, rotation_of(model))
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:
            result = forward(hidden_states())
            assert counted.get_total_flops() == TOKENS * declared.flops(SEQUENCE), part
            result.sum().backward()
        assert counted.get_total_flops() == 3 * TOKENS * declared.flops(SEQUENCE), part


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_the_declared_memory_is_that_of_the_tensors_kept_for_the_backward_pass(name, dtype):
    model = MODELS[name]
    batch = MicroBatchPart(
        samples=SAMPLES, sequence=SEQUENCE, device="cpu", number_bytes=dtype.itemsize
    )
    for part, declared, module in parts_of(model):
        if part.endswith("embedding") or part == "output":
            continue
        rotation = rotation_of(model, dtype)
        forward = forward_of(part, module.to(dtype), rotation)
        kept: dict[int, int] = {}

        def note(tensor: Tensor, kept: dict[int, int] = kept) -> Tensor:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            result = forward(hidden_states(dtype))
        # Layers in fp32 share the table itself.
        shared = [rotation] if rotation is not None and dtype is torch.float32 else []
        for tensor in (*module.parameters(), *shared):
            kept.pop(tensor.untyped_storage().data_ptr(), None)
        assert result.requires_grad
        # A CPU keeps the statistics of LayerNorm in bf16, a GPU in fp32.
        exact = dtype is torch.float32 or model.normalization != "layernorm"
        expected = pytest.approx(declared.kept(batch).saved, rel=0 if exact else 0.06)
        assert sum(kept.values()) == expected, part


def test_every_linear_layer_of_a_block_is_built_by_one_function(monkeypatch):
    class Narrow(nn.Linear):
        """A linear layer of another number format."""

    def build_narrow(declared):
        built = build_linear(declared)
        built.__class__ = Narrow
        return built

    for module in (attention, decoder):
        monkeypatch.setattr(module, "build_linear", build_narrow)
    for model in MODELS.values():
        modules = Decoder(model, sequence_length=SEQUENCE).layers.modules()
        assert {type(one) for one in modules if isinstance(one, nn.Linear)} == {Narrow}
