"""Where the weights of our decoder are in the files that transformers reads and writes."""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from rampcli.config.huggingface import model_type
from rampcli.config.schema import ModelConfig
from rampcli.errors import RampcliError
from rampcli.models.decoder import Decoder

OF_LLAMA = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "output": "lm_head",
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn.gate": "mlp.gate_proj",
    "ffn.up": "mlp.up_proj",
    "ffn.output": "mlp.down_proj",
}
OF_GPT2 = {
    "embedding": "transformer.wte",
    "position_embedding": "transformer.wpe",
    "norm": "transformer.ln_f",
    "output": "lm_head",
    "attention_norm": "ln_1",
    "attention.query": "attn.c_attn",
    "attention.key": "attn.c_attn",
    "attention.value": "attn.c_attn",
    "attention.output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn.up": "mlp.c_fc",
    "ffn.output": "mlp.c_proj",
}
"""Our modules, in the order of the decoder, and theirs; one of theirs may hold several of ours, one below the other."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a parameter is: the tensor, its first row in it, and whether its rows are the tensor's columns."""

    tensor: str
    first_row: int
    transposed: bool


def places(model: ModelConfig, *, sequence_length: int) -> dict[str, Place]:
    """Of every parameter of a decoder, in the order of its parameters.

    Raises:
        UsageError: transformers has no class for the model.
    """
    of_gpt2 = model_type(model) == "gpt2"
    with torch.device("meta"):
        parameters = list(Decoder(model, sequence_length=sequence_length).named_parameters())
    found: dict[str, Place] = {}
    rows: dict[str, int] = {}
    for name, parameter in parameters:
        module, _, kind = name.rpartition(".")
        if module.startswith("layers."):
            _, layer, inner = module.split(".", 2)
            theirs = f"transformer.h.{layer}.{OF_GPT2[inner]}" if of_gpt2 else f"model.layers.{layer}.{OF_LLAMA[inner]}"
        else:
            theirs = (OF_GPT2 if of_gpt2 else OF_LLAMA)[module]
        tensor = f"{theirs}.{kind}"
        # GPT-2's linear layers are convolutions in transformers, with the matrix the other way round.
        transposed = of_gpt2 and module.startswith("layers.") and parameter.ndim == 2
        found[name] = Place(tensor, rows.get(tensor, 0), transposed)
        rows[tensor] = found[name].first_row + parameter.shape[0]
    return found


def joined(found: dict[str, Place]) -> dict[str, list[str]]:
    """Their tensors, and the parameters of ours that make each up, from its first row on."""
    tensors: dict[str, list[str]] = {}
    for name, place in found.items():
        tensors.setdefault(place.tensor, []).append(name)
    return tensors


class Folder:
    """The safetensors files of a folder; only the rows that are asked for are read."""

    def __init__(self, path: Path, model: ModelConfig, *, sequence_length: int) -> None:
        self.path = path
        self.places = places(model, sequence_length=sequence_length)
        self.files = _files(path)

    def rows_of(self, model: Decoder, name: str, first: int, rows: int) -> Tensor:
        """Rows first .. first + rows of a parameter, all columns, in the type of the file.

        Raises:
            RampcliError: the folder has no such tensor, or one of another shape.
        """
        place = self.places[name]
        tensor = place.tensor if place.tensor in self.files else place.tensor.removeprefix("transformer.")
        if tensor not in self.files:
            raise RampcliError(f"{self.path} holds no {place.tensor}")
        start, parameter = place.first_row + first, model.get_parameter(name)
        with safe_open(self.files[tensor], framework="pt") as file:
            stored = file.get_slice(tensor)
            read: Tensor = stored[:, start : start + rows].T if place.transposed else stored[start : start + rows]
        if read.shape != (rows, *parameter.shape[1:]):
            raise RampcliError(f"{tensor} in {self.path} has the shape {stored.get_shape()}, which is not that of {name}")
        return read


def _files(path: Path) -> dict[str, Path]:
    """Which file each tensor is in. A file may be one of several; the index of them is not needed."""
    files: dict[str, Path] = {}
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            files |= dict.fromkeys(opened.keys(), file)
    return files
