"""Reads the decoder's weights from files of transformers."""

import math
from pathlib import Path

import torch
from torch import Tensor

from rampcli.errors import DamagedFileError
from rampcli.files.safetensors_header import StoredTensor
from rampcli.models.decoder import Decoder
from rampcli.models.huggingface_tensors import StoredWeights, read_bytes

FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


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
