"""Checks where a run's initial weights come from (`model.init_from`). Imports no torch."""

import os
from pathlib import Path

from rampcli import hub
from rampcli.config import snapshot
from rampcli.config.model_parts import POSITION_EMBEDDINGS
from rampcli.config.schema import Config
from rampcli.errors import UsageError, naming_setting
from rampcli.hub import CONFIG_FILE
from rampcli.models.huggingface_config import (
    FOLDER,
    INIT_FROM_KEY,
    check_init_from,
    check_same_model,
    learned_positions,
    read_config,
)
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import complete_checkpoints

LENGTH_KEY = "data.sequence_length"
REMEDY = f"{INIT_FROM_KEY}=RUN_DIR, a run with a checkpoint"
HUB_REMEDY = f"{REMEDY}, or a model of the hub with {CONFIG_FILE} and *.safetensors"


def is_run(folder: Path) -> bool:
    """Returns whether a folder is a run directory, rather than one for transformers."""
    return RunDirectory(folder).config.is_file()


def starting_vocabulary(text: str) -> int | None:
    """Returns the size of the vocabulary of weights, or None if the folder does not exist.

    Args:
        text: value of `model.init_from`. Of a model of the hub, only `config.json` is downloaded.

    Raises:
        RampcliError: the folder holds no weights, or the model cannot be downloaded.
    """
    folder = Path(text).expanduser()
    if is_run(folder):
        return snapshot.read(RunDirectory(folder).config).model.vocab_size
    if not (hub.is_pinned(text) or os.path.exists(folder)):
        return None
    return read_config(model_folder(text)).vocab_size


def check_starting_weights(config: Config) -> Path | None:
    """Returns the folder of `model.init_from`, or None if it is not set.

    It is a run, or a folder with a model of the configured shape. Weights of a model of the hub are
    downloaded.

    Raises:
        RampcliError: it is neither; the remedy has the settings of the model that it holds. Or
            weights cannot be downloaded.
    """
    text = config.model.init_from
    if text is None:
        return None
    if hub.is_pinned(text):
        with naming_setting(INIT_FROM_KEY):
            return _download(config, text)
    folder = Path(text).expanduser()
    if not is_run(folder):
        check_init_from(config.model, model_folder(text))
        _check_positions(config, str(folder), learned_positions(folder))
    else:
        _check_is_trained(config, folder)
    return folder


def model_folder(text: str, *, remedy: str | None = None) -> Path:
    """Returns the folder with the settings of a model.

    Args:
        text: value of `model.init_from`. Of a model of the hub, only `config.json` is downloaded.
        remedy: what to try if the folder has no settings.

    Raises:
        RampcliError: the folder is not one of a model, or the model cannot be downloaded.
    """
    if hub.is_pinned(text):
        with naming_setting(INIT_FROM_KEY):
            return hub.open_snapshot(text, CONFIG_FILE, remedy=HUB_REMEDY).folder
    folder = Path(text).expanduser()
    _check_is_model(text, folder, remedy=remedy)
    return folder


def _download(config: Config, name: str) -> Path:
    """Downloads a model of the hub, its weights only if it has the configured shape."""
    model = hub.open_snapshot(name, CONFIG_FILE, remedy=HUB_REMEDY)
    check_same_model(config.model, read_config(model.folder), name)
    _check_positions(config, name, learned_positions(model.folder))
    hub.download_weights(model, remedy=HUB_REMEDY)
    return model.folder


def _check_is_trained(config: Config, folder: Path) -> None:
    """Checks that a run has a checkpoint of a model of the configured shape.

    Raises:
        UsageError: it has not.
    """
    theirs = snapshot.read(RunDirectory(folder).config)
    if not complete_checkpoints(RunDirectory(folder)):
        raise UsageError(
            f"{INIT_FROM_KEY}={folder} is a run that has not saved a checkpoint yet",
            keys=(INIT_FROM_KEY,),
            remedy=f"{REMEDY}, or {INIT_FROM_KEY}=null for random weights",
        )
    check_same_model(config.model, theirs.model, str(folder))
    ours, length = config.data.sequence_length, theirs.data.sequence_length
    is_learned = POSITION_EMBEDDINGS[config.model.position_embedding].is_learned
    if is_learned and ours != length:
        raise UsageError(
            f"{folder} has learned positions for {LENGTH_KEY}={length}, here {ours}",
            keys=(INIT_FROM_KEY, LENGTH_KEY),
            remedy=f"{LENGTH_KEY}={length}",
        )


def _check_positions(config: Config, name: str, positions: int | None) -> None:
    """Checks that a model has learned all positions of a sample, if its positions are learned.

    Raises:
        UsageError: it has fewer.
    """
    ours = config.data.sequence_length
    if positions is not None and ours > positions:
        raise UsageError(
            f"{name} has learned {positions:,} positions, and {LENGTH_KEY}={ours}",
            keys=(INIT_FROM_KEY, LENGTH_KEY),
            remedy=f"{LENGTH_KEY}={positions}",
        )


def _check_is_model(text: str, folder: Path, *, remedy: str | None) -> None:
    """Checks that a folder that is no run directory has the settings of a model.

    Raises:
        UsageError: it has none, or there is no such folder. If it is inside a run directory, the
            remedy names that.
    """
    if os.path.isfile(folder / CONFIG_FILE):
        return
    exists = os.path.exists(folder)
    if os.path.isdir(folder):
        wrong = f"holds neither a run (config.yaml) nor a model of Hugging Face ({CONFIG_FILE})"
    else:
        wrong = "is a file" if exists else "does not exist"
    elsewhere = remedy or f"{REMEDY}, or {FOLDER}"
    if hub.is_hub_name(text):
        elsewhere += (
            f", or NAME@COMMIT for a model of the hub; `rampcli import {text}"
            " conf/model/NAME.yaml` finds its commit"
        )
    run = next(filter(is_run, folder.parents), None) if exists else None
    raise UsageError(
        f"{INIT_FROM_KEY}={folder} {wrong}",
        keys=(INIT_FROM_KEY,),
        remedy=f"{INIT_FROM_KEY}={run}, the run directory" if run else elsewhere,
    )
