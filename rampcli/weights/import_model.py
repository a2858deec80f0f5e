"""Imports a Hugging Face model as an option of the group `model`. Needs no torch."""

from pathlib import Path
from typing import Any

import yaml

from rampcli.errors import UsageError, visible
from rampcli.files import hub
from rampcli.files.guarded_folder import replace_file
from rampcli.models.huggingface_config import as_settings, has_weights, read_config

MODEL_REMEDY = "a model that save_pretrained wrote, with config.json and *.safetensors"


def import_model(model: str, file: Path) -> dict[str, Any]:
    """Writes the settings of a Hugging Face model, with `init_from`, and returns them.

    Args:
        model: folder with `config.json` and `*.safetensors`, as `save_pretrained` writes them, or
            a model of the hub. Its weights are not downloaded.
        file: new file `CONF/model/NAME.yaml`; its folder is created if needed.

    Raises:
        RampcliError: the decoder cannot compute the model, its weights are not safetensors, or it
            cannot be downloaded; or `file` exists or is not in a folder `model`.
    """
    if file.suffix != ".yaml" or file.parent.name != "model":
        raise UsageError(
            f"{file} is not a file of the group model",
            remedy=f"conf/model/{file.stem or 'mine'}.yaml",
        )
    if file.exists():
        raise UsageError(f"{file} exists already", remedy="another name")
    if hub.is_hub_name(model):
        snapshot = hub.open_snapshot(model, hub.CONFIG_FILE, remedy=MODEL_REMEDY)
        settings, name = as_settings(read_config(snapshot.folder)), snapshot.name
        if hub.find_weights(snapshot) is None:
            raise UsageError(f"{name} has no weights in safetensors", remedy=MODEL_REMEDY)
        settings["init_from"] = name
    else:
        folder = Path(model).expanduser()
        settings, name = as_settings(read_config(folder)), folder.name
        if not has_weights(folder):
            raise UsageError(f"{folder} holds no *.safetensors", remedy=MODEL_REMEDY)
        settings["init_from"] = str(folder.resolve())
    file.parent.mkdir(parents=True, exist_ok=True)
    comment = f"# {visible(name)}, with its weights to start from.\n"
    replace_file(file, comment + yaml.safe_dump(settings, sort_keys=False))
    return settings
