"""Where the weights of our decoder are in the files that transformers reads and writes."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rampcli.config.huggingface import model_type
from rampcli.config.schema import ModelConfig
from rampcli.errors import DamagedFileError
from rampcli.models.decoder import Decoder
from rampcli.own_folder import open_to_read
from rampcli.safetensors_header import StoredTensor, read_header

TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""That weights may have. Others, as those of quantised models, mean something only with scales."""

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
    """Where a parameter is: the tensor, its first row in it, whether its rows are the tensor's columns, and its shape."""

    tensor: str
    first_row: int
    transposed: bool
    shape: tuple[int, ...]


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
            theirs = (
                f"transformer.h.{layer}.{OF_GPT2[inner]}"
                if of_gpt2
                else f"model.layers.{layer}.{OF_LLAMA[inner]}"
            )
        else:
            theirs = (OF_GPT2 if of_gpt2 else OF_LLAMA)[module]
        tensor = f"{theirs}.{kind}"
        # GPT-2's linear layers are convolutions in transformers, with the matrix the other way round.
        transposed = of_gpt2 and module.startswith("layers.") and parameter.ndim == 2
        found[name] = Place(tensor, rows.get(tensor, 0), transposed, tuple(parameter.shape))
        rows[tensor] = found[name].first_row + parameter.shape[0]
    return found


def joined(found: dict[str, Place]) -> dict[str, list[str]]:
    """Their tensors, and the parameters of ours that make each up, from its first row on."""
    tensors: dict[str, list[str]] = {}
    for name, place in found.items():
        tensors.setdefault(place.tensor, []).append(name)
    return tensors


class Folder:
    """The safetensors files of a folder; only the rows that are asked for are read.

    Raises:
        DamagedFileError: a file is damaged; or a tensor of the model is missing, is there twice, or has another shape or a type that
            weights do not have.
    """

    def __init__(self, path: Path, model: ModelConfig, *, sequence_length: int) -> None:
        self.path = path
        self.places = places(model, sequence_length=sequence_length)
        tensors = _tensors(path)
        self.tensors = {
            tensor: self._find(tensors, tensor, names)
            for tensor, names in joined(self.places).items()
        }

    def _find(
        self, tensors: dict[str, list[tuple[Path, StoredTensor]]], tensor: str, names: list[str]
    ) -> tuple[Path, StoredTensor]:
        """Returns the file of a tensor, and what its header says, once that suits the parameters that it holds."""
        found = tensors.get(tensor) or tensors.get(tensor.removeprefix("transformer."), [])
        if len(found) != 1:
            files = ", ".join(path.name for path, _ in found)
            raise DamagedFileError(
                f"{self.path} holds {tensor} in several files: {files}"
                if found
                else f"{self.path} holds no {tensor}"
            )
        file, stored = found[0]
        parts = [self.places[name] for name in names]
        shape = stored.shape[::-1] if parts[0].transposed else stored.shape
        rows, columns = sum(part.shape[0] for part in parts), parts[0].shape[1:]
        # Learned positions may be more than this run's sequences need.
        fits = (
            shape[:1] >= (rows,) if names == ["position_embedding.weight"] else shape[:1] == (rows,)
        )
        if not fits or shape[1:] != columns:
            raise DamagedFileError(
                f"{tensor} in {file} has the shape {stored.shape}, which is not that of {' and '.join(names)}"
            )
        if stored.dtype not in TYPES:
            raise DamagedFileError(
                f"{tensor} in {file} is of the type {stored.dtype}; weights are {', '.join(TYPES)}"
            )
        return file, stored

    def rows_of(self, model: Decoder, name: str, first: int, rows: int) -> Tensor:  # noqa: ARG002
        """Rows first .. first + rows of a parameter, all columns, in the type of the file.

        Raises:
            DamagedFileError: the file has changed, or holds numbers that are not finite.
        """
        place = self.places[name]
        file, stored = self.tensors[place.tensor]
        start = place.first_row + first
        read = (
            _read(file, stored, 0, stored.shape[0]).T[start : start + rows]
            if place.transposed
            else _read(file, stored, start, rows)
        )
        if not read.isfinite().all():
            raise DamagedFileError(f"{place.tensor} in {file} holds numbers that are not finite")
        return read


def _tensors(folder: Path) -> dict[str, list[tuple[Path, StoredTensor]]]:
    """Returns what the headers of a folder's files say of each tensor. The index that such a folder may have is not needed."""
    found: dict[str, list[tuple[Path, StoredTensor]]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, stored in read_header(file).tensors.items():
            found.setdefault(name, []).append((file, stored))
    return found


def _read(file: Path, stored: StoredTensor, first: int, rows: int) -> Tensor:
    """Returns rows of a tensor.

    Raises:
        DamagedFileError: the file cannot be read any more, or is shorter now.
    """
    dtype, columns = TYPES[stored.dtype], stored.shape[1:]
    row_bytes = math.prod(columns) * dtype.itemsize
    buffer = bytearray(rows * row_bytes)
    try:
        with open_to_read(file) as opened:
            opened.seek(stored.begin + first * row_bytes)
            if opened.readinto(buffer) != len(buffer):  # type: ignore[attr-defined]
                raise DamagedFileError(f"{file} ends too soon")
    except OSError as error:
        raise DamagedFileError(f"cannot read {file}: {error.strerror or error}") from error
    return torch.frombuffer(buffer, dtype=dtype).view(rows, *columns)
