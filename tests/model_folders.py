"""Hugging Face folders whose weights are empty, for checks that do not read them."""

import json
from pathlib import Path

from rampcli.config.schema import ModelConfig
from rampcli.data.tokenizer import byte_tokenizer
from rampcli.models.huggingface_config import to_huggingface

MODEL = ModelConfig(num_layers=1, hidden_size=32, num_query_groups=4)


def write_model(folder: Path) -> Path:
    """Writes a model with a byte tokenizer, and returns the folder."""
    folder.mkdir()
    content = to_huggingface(MODEL, sequence_length=32, dtype="float32")
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    (folder / "model.safetensors").touch()
    (folder / "tokenizer.json").write_text(byte_tokenizer().to_str(), encoding="utf-8")
    return folder
