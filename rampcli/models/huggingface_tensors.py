"""Finds the decoder's weights in the files that transformers reads and writes. Imports no torch."""

import operator
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rampcli.batch.quantities import MOST_NAMED, listed
from rampcli.errors import DamagedFileError, reading
from rampcli.files.guarded_folder import open_to_read
from rampcli.files.safetensors_header import StoredTensor, read_header
from rampcli.models.parts import Part, Shape, layer_parts, outer_parts
from rampcli.settings.architectures import model_type
from rampcli.settings.model import ModelConfig

HEAD = "lm_head.weight"
"""The output projection in all families."""
DERIVED_TENSORS = re.compile(r"(rotary_emb\.inv_freq|\.attn\.(masked_)?bias)$")
"""Names of tensors that follow from the settings: frequencies, and the causal masks of GPT-2."""
COMPARED_BYTES = 2**24
FLOAT_NAMES = ("F64", "F32", "F16", "BF16")
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
    outer = outer_parts(model, sequence_length=sequence_length)
    last = {name: outer.pop(name) for name in ("norm", "output")}
    layer = _shapes_in(layer_parts(model))
    found: dict[str, Place] = {}
    rows: dict[str, int] = {}

    def add(name: str, tensor: str, shape: Shape, *, transposed: bool = False) -> None:
        found[name] = Place(tensor, rows.get(tensor, 0), transposed, shape)
        rows[tensor] = found[name].first_row + shape[0]

    def add_outside(parts: Mapping[str, Part]) -> None:
        for module, kind, shape in _shapes_in(parts):
            add(f"{module}.{kind}", f"{theirs.modules[module]}.{kind}", shape)

    add_outside(outer)
    for number in range(model.num_layers):
        for module, kind, shape in layer:
            add(
                f"layers.{number}.{module}.{kind}",
                f"{theirs.layers}.{number}.{theirs.modules[module]}.{kind}",
                shape,
                transposed=theirs.transposed and len(shape) == 2,
            )
    add_outside(last)
    return found


def _shapes_in(parts: Mapping[str, Part]) -> list[tuple[str, str, Shape]]:
    """Returns each parameter of some parts: its module, its name in the module, and its shape."""
    return [
        (module, kind, shape)
        for part, declared in parts.items()
        for name, shape in declared.parameters().items()
        for module, _, kind in [f"{part}.{name}".rpartition(".")]
    ]


def group_by_tensor(found: Mapping[str, Place]) -> dict[str, list[str]]:
    """Groups parameters by the tensor that holds them, in the order of their rows."""
    tensors: dict[str, list[str]] = {}
    for name, place in found.items():
        tensors.setdefault(place.tensor, []).append(name)
    return tensors


class StoredWeights:
    """The tensors of a model in the safetensors files of a folder, from the files' headers.

    Attributes:
        path: the folder.
        places: location of each parameter of the model.
        tensors: file and header entry of each tensor that the model has.
        unused: tensors that the model does not have, in order. Tensors that follow from settings,
            such as the frequencies of rotary embeddings, are not among them.

    Raises:
        DamagedFileError: a file is damaged, or a tensor of the model is missing, stored twice, of
            another shape, or of a type that weights do not have.
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
        unused = [
            name for name in sorted(tensors.keys() - known) if not DERIVED_TENSORS.search(name)
        ]
        self.heads = tensors[HEAD] if HEAD in unused and model.tie_embeddings else []
        self.unused = [name for name in unused if not (self.heads and name == HEAD)]

    def describe_unused(self) -> str:
        """Returns a message that names the tensors which the model does not have."""
        named = listed(self.unused, most=MOST_NAMED)
        return f"the model does not have these tensors of {self.path}: {named}"

    def check_tied(self) -> None:
        """Checks that a stored output projection is the embedding, if the two are tied.

        Reads both.

        Raises:
            DamagedFileError: it is another one, or a file cannot be read.
        """
        name = self.places["embedding.weight"].tensor
        file, embedding = self.tensors[name]
        for head_file, head in self.heads:
            is_same = (head.dtype, head.shape) == (embedding.dtype, embedding.shape) and all(
                map(operator.eq, _pieces(head_file, head), _pieces(file, embedding))
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
        if stored.dtype not in FLOAT_NAMES:
            raise DamagedFileError(
                f"{tensor} in {file} has the unsupported type {stored.dtype}; supported:"
                f" {', '.join(FLOAT_NAMES)}"
            )
        return file, stored


def _stored_tensors(folder: Path) -> dict[str, list[tuple[Path, StoredTensor]]]:
    """Returns the files and header entries of each tensor in a folder.

    They come from the files' own headers; an index file in the folder is not read.
    """
    found: dict[str, list[tuple[Path, StoredTensor]]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, stored in read_header(file).tensors.items():
            found.setdefault(name, []).append((file, stored))
    return found


def read_bytes(file: Path, begin: int, size: int) -> bytearray:
    """Returns bytes of a file.

    Raises:
        DamagedFileError: they cannot be read, or the file ends before them.
    """
    buffer = bytearray(size)
    with reading(file, kind=DamagedFileError), open_to_read(file) as opened:
        opened.seek(begin)
        if opened.readinto(buffer) != size:
            raise DamagedFileError(f"{file} ends too soon")
    return buffer


def _pieces(file: Path, stored: StoredTensor) -> Iterator[bytearray]:
    """Yields the bytes of a tensor in order."""
    for begin in range(stored.begin, stored.end, COMPARED_BYTES):
        yield read_bytes(file, begin, min(COMPARED_BYTES, stored.end - begin))
