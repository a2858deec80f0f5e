"""Imports a Hugging Face model as an option of the group `model`. Needs no torch."""

from pathlib import Path
from typing import Any

import yaml

from rampcli.errors import UsageError, visible
from rampcli.models.huggingface_config import as_settings, has_weights, read_config
from rampcli.own_folder import replace_file


def import_model(folder: Path, file: Path) -> dict[str, Any]:
    """Writes the settings of a Hugging Face model, with `init_from`, and returns them.

    Args:
        folder: holds `config.json` and `*.safetensors`, as `save_pretrained` writes them.
        file: new file `CONF/model/NAME.yaml`; its folder is created if needed.

    Raises:
        UsageError: the decoder cannot compute the model, its weights are not safetensors, or
            `file` exists or is not in a folder `model`.
    """
    if file.suffix != ".yaml" or file.parent.name != "model":
        raise UsageError(
            f"{file} is not a file of the group model",
            remedy=f"conf/model/{file.stem or 'mine'}.yaml",
        )
    if file.exists():
        raise UsageError(f"{file} exists already", remedy="another name")
    settings = as_settings(read_config(folder))
    if not has_weights(folder):
        raise UsageError(
            f"{folder} holds no *.safetensors", remedy="a folder that save_pretrained wrote"
        )
    settings["init_from"] = str(folder.resolve())
    file.parent.mkdir(parents=True, exist_ok=True)
    comment = f"# {visible(folder.name)}, with its weights to start from.\n"
    replace_file(file, comment + yaml.safe_dump(settings, sort_keys=False))
    return settings
