"""Hugging Face folders with a tokenizer and random weights, written without torch."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from rampcli.data.tokenizer import byte_tokenizer
from rampcli.models.huggingface_config import to_huggingface
from rampcli.models.huggingface_tensors import group_by_tensor, places
from rampcli.settings.model import ModelConfig

MODEL = ModelConfig(num_layers=1, hidden_size=32, num_query_groups=4)
SEQUENCE = 32


def write_model(
    folder: Path,
    model: ModelConfig = MODEL,
    *,
    sequence_length: int = SEQUENCE,
    others: Mapping[str, tuple[int, ...] | None] | None = None,
) -> Path:
    """Writes a model with a byte tokenizer, and returns the folder.

    Args:
        others: shapes of further tensors by name; None leaves a tensor of the model out.
    """
    folder.mkdir()
    content = to_huggingface(model, sequence_length=sequence_length, dtype="float32")
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    (folder / "tokenizer.json").write_text(byte_tokenizer().to_str(), encoding="utf-8")
    found = places(model, sequence_length=sequence_length)
    shapes: dict[str, tuple[int, ...] | None] = {}
    for tensor, names in group_by_tensor(found).items():
        rows, columns = sum(found[name].shape[0] for name in names), found[names[0]].shape[1:]
        shapes[tensor] = (*columns, rows) if found[names[0]].transposed else (rows, *columns)
    numbers = np.random.default_rng(0)
    tensors = {
        name: numbers.normal(0, 0.02, shape).astype(np.float32)
        for name, shape in {**shapes, **(others or {})}.items()
        if shape is not None
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
