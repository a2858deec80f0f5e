"""Initial weights of a decoder: drawn from the seed, or read from files of transformers.

A row that is drawn depends only on the seed, the parameter's name and the row's number, not on the
mesh.
"""

import hashlib
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rampcli.errors import DamagedFileError
from rampcli.files.safetensors_header import StoredTensor
from rampcli.models.decoder import Decoder
from rampcli.models.huggingface_tensors import StoredWeights, read_bytes
from rampcli.settings.model import ModelConfig

FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def initial_rows(model: Decoder, name: str, first: int, rows: int, *, seed: int) -> Tensor:
    """Returns rows first .. first + rows of a parameter's initial value, all columns.

    Matrices and embeddings are drawn from a normal distribution; norms are ones and biases zeros.
    The result is fp32 on the CPU.
    """
    shape = (rows, *model.get_parameter(name).shape[1:])
    if name.endswith("bias"):
        return torch.zeros(shape)
    if len(shape) == 1:
        return torch.ones(shape)
    writes_residual = name.startswith("layers.") and name.endswith("output.weight")
    std = np.float32(residual_init_std(model.model) if writes_residual else model.model.init_std)
    key = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:16], "big")
    drawn = np.empty(shape, dtype=np.float32)
    for row in range(rows):
        # A counter-based generator gives each row its own stream, so ranks draw only their rows.
        generator = np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, first + row]))
        generator.standard_normal(dtype=np.float32, out=drawn[row])
    return torch.from_numpy(drawn * std)


def residual_init_std(model: ModelConfig) -> float:
    """Returns the standard deviation for projections that write into the residual stream.

    It is divided by the square root of their number (Radford et al., 2019).
    """
    return model.init_std / math.sqrt(2 * model.num_layers)


class WeightFolder(StoredWeights):
    """The weights of a model in a folder. Reads only the rows that are requested."""

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


def _read(file: Path, stored: StoredTensor, first: int, rows: int) -> Tensor:
    """Returns rows first .. first + rows of a tensor."""
    dtype, columns = FLOATS[stored.dtype], stored.shape[1:]
    row_bytes = math.prod(columns) * dtype.itemsize
    content = read_bytes(file, stored.begin + first * row_bytes, rows * row_bytes)
    return torch.frombuffer(content, dtype=dtype).view(rows, *columns)
