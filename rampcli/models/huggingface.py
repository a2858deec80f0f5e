"""Locates the decoder's weights in the files that transformers reads and writes."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rampcli.batch.quantities import listed
from rampcli.config.architectures import model_type
from rampcli.config.schema import ModelConfig
from rampcli.errors import DamagedFileError, reading
from rampcli.guarded_folder import open_to_read
from rampcli.models.decoder import Decoder, build_decoder
from rampcli.safetensors_header import StoredTensor, read_header

HEAD = "lm_head.weight"
"""The output projection in all families."""
DERIVED = re.compile(r"(rotary_emb\.inv_freq|\.attn\.(masked_)?bias)$")
"""Names of tensors that follow from the settings: frequencies, and the causal masks of GPT-2."""
COMPARED_ROWS = 4096
MOST_NAMED = 5
FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Types that weights may have. Others, as in quantised models, need scales to be read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightNames:
    """Names and layout of the tensors of one family of transformers' classes.

    Attributes:
        modules: transformers' module for each of the decoder's modules, in the decoder's order. One
            transformers module may hold several of the decoder's, stacked by rows.
        layers: prefix of the layers' modules, before the layer's number.
        optional_prefix: prefix that files may leave out.
        transposed: layers store their matrices as [inputs, outputs].
    """

    modules: dict[str, str]
    layers: str
    optional_prefix: str = ""
    transposed: bool = False


LLAMA = WeightNames(
    layers="model.layers",
    modules={
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
    },
)
# GPT-2's linear layers are 1D convolutions in transformers, which store the transposed matrix.
GPT2 = WeightNames(
    layers="transformer.h",
    optional_prefix="transformer.",
    transposed=True,
    modules={
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
    },
)
WEIGHT_NAMES = {"llama": LLAMA, "mistral": LLAMA, "qwen3": LLAMA, "gpt2": GPT2}
"""Names of weights, by the model type of transformers' `config.json`."""


@dataclass(frozen=True, slots=True)
class Place:
    """Location of a parameter in a folder of weights.

    Attributes:
        tensor: name of the tensor that holds it.
        first_row: its first row in that tensor.
        transposed: True if the tensor stores the transposed matrix.
        shape: of the parameter.
    """

    tensor: str
    first_row: int
    transposed: bool
    shape: tuple[int, ...]


def places(model: ModelConfig, *, sequence_length: int) -> dict[str, Place]:
    """Returns the location of each parameter of a decoder, in the order of its parameters.

    Raises:
        UsageError: transformers has no class for the model.
    """
    theirs = WEIGHT_NAMES[model_type(model)]
    parameters = list(build_decoder(model, sequence_length=sequence_length).named_parameters())
    found: dict[str, Place] = {}
    rows: dict[str, int] = {}
    for name, parameter in parameters:
        module, _, kind = name.rpartition(".")
        in_layer = module.startswith("layers.")
        if in_layer:
            _, layer, inner = module.split(".", 2)
            tensor = f"{theirs.layers}.{layer}.{theirs.modules[inner]}.{kind}"
        else:
            tensor = f"{theirs.modules[module]}.{kind}"
        transposed = theirs.transposed and in_layer and parameter.ndim == 2
        found[name] = Place(tensor, rows.get(tensor, 0), transposed, tuple(parameter.shape))
        rows[tensor] = found[name].first_row + parameter.shape[0]
    return found


def group_by_tensor(found: Mapping[str, Place]) -> dict[str, list[str]]:
    """Groups parameters by the tensor that holds them, in the order of their rows."""
    tensors: dict[str, list[str]] = {}
    for name, place in found.items():
        tensors.setdefault(place.tensor, []).append(name)
    return tensors


class WeightFolder:
    """Safetensors files of a folder. Reads only the rows that are requested.

    Attributes:
        unused: tensors that the model does not have, in order. Tensors that follow from settings,
            such as the frequencies of rotary embeddings, are not among them.

    Raises:
        DamagedFileError: a file is damaged, or a tensor of the model is missing, stored twice, of
            another shape, or of a type that weights do not have; or the output projection is tied
            to the embedding and the files hold another one.
    """

    def __init__(self, path: Path, model: ModelConfig, *, sequence_length: int) -> None:
        self.path = path
        self.places = places(model, sequence_length=sequence_length)
        self.optional_prefix = WEIGHT_NAMES[model_type(model)].optional_prefix
        tensors = _stored_tensors(path)
        self.tensors = {
            tensor: self._find(tensors, tensor, names)
            for tensor, names in group_by_tensor(self.places).items()
        }
        known = {*self.tensors, *(one.removeprefix(self.optional_prefix) for one in self.tensors)}
        self.unused = [name for name in sorted(tensors.keys() - known) if not DERIVED.search(name)]
        if HEAD in self.unused and model.tie_embeddings:
            self._check_tied(tensors[HEAD])
            self.unused.remove(HEAD)

    def describe_unused(self) -> str:
        """Returns a message that names the tensors which the model does not have."""
        more = len(self.unused) - MOST_NAMED
        named = [*self.unused[:MOST_NAMED], *([f"{more:,} more"] if more > 0 else [])]
        return f"the model does not have these tensors of {self.path}: {listed(named)}"

    def _check_tied(self, heads: list[tuple[Path, StoredTensor]]) -> None:
        """Checks that the stored output projections are the embedding, to which they are tied."""
        name = self.places["embedding.weight"].tensor
        file, embedding = self.tensors[name]
        for head_file, head in heads:
            is_same = head.shape == embedding.shape and all(
                _read(head_file, head, row, rows).equal(_read(file, embedding, row, rows))
                for row in range(0, head.shape[0], COMPARED_ROWS)
                for rows in [min(COMPARED_ROWS, head.shape[0] - row)]
            )
            if not is_same:
                raise DamagedFileError(
                    f"{HEAD} in {head_file} differs from {name}, to which tie_word_embeddings=true"
                    f" in {self.path / 'config.json'} ties it"
                )

    def _find(
        self, tensors: dict[str, list[tuple[Path, StoredTensor]]], tensor: str, names: list[str]
    ) -> tuple[Path, StoredTensor]:
        """Returns a tensor's file and header entry, after checking them against its parameters."""
        found = tensors.get(tensor) or tensors.get(tensor.removeprefix(self.optional_prefix), [])
        if len(found) != 1:
            files = ", ".join(path.name for path, _ in found)
            raise DamagedFileError(
                f"{self.path} holds {tensor} in several files: {files}"
                if found
                else f"{self.path} does not hold {tensor}"
            )
        file, stored = found[0]
        parts = [self.places[name] for name in names]
        shape = stored.shape[::-1] if parts[0].transposed else stored.shape
        rows, columns = sum(part.shape[0] for part in parts), parts[0].shape[1:]
        # A model may have more learned positions than this run's sequences need.
        fits = (
            shape[:1] >= (rows,) if names == ["position_embedding.weight"] else shape[:1] == (rows,)
        )
        if not fits or shape[1:] != columns:
            raise DamagedFileError(
                f"{tensor} in {file} has shape {stored.shape}, which does not fit"
                f" {' and '.join(names)}"
            )
        if stored.dtype not in FLOATS:
            raise DamagedFileError(
                f"{tensor} in {file} has the unsupported type {stored.dtype}; supported:"
                f" {', '.join(FLOATS)}"
            )
        return file, stored

    def rows_of(self, model: Decoder, name: str, first: int, rows: int) -> Tensor:  # noqa: ARG002
        """Returns rows first .. first + rows of a parameter, all columns, in the file's type.

        Raises:
            DamagedFileError: the file has changed, or holds values that are not finite.
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
            raise DamagedFileError(f"{place.tensor} in {file} holds values that are not finite")
        return read


def _stored_tensors(folder: Path) -> dict[str, list[tuple[Path, StoredTensor]]]:
    """Returns the files and header entries of each tensor in a folder.

    They come from the files' own headers; an index file in the folder is not read.
    """
    found: dict[str, list[tuple[Path, StoredTensor]]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, stored in read_header(file).tensors.items():
            found.setdefault(name, []).append((file, stored))
    return found


def _read(file: Path, stored: StoredTensor, first: int, rows: int) -> Tensor:
    """Returns rows first .. first + rows of a tensor."""
    dtype, columns = FLOATS[stored.dtype], stored.shape[1:]
    row_bytes = math.prod(columns) * dtype.itemsize
    buffer = bytearray(rows * row_bytes)
    with reading(file, kind=DamagedFileError), open_to_read(file) as opened:
        opened.seek(stored.begin + first * row_bytes)
        if opened.readinto(buffer) != len(buffer):
            raise DamagedFileError(f"{file} ends too soon")
    return torch.frombuffer(buffer, dtype=dtype).view(rows, *columns)
