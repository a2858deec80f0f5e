"""Checks where a run's initial weights come from (`model.init_from`). Imports no torch."""

import os
from pathlib import Path

from rampcli.checkpoint.manifest import complete_checkpoints
from rampcli.config import snapshot
from rampcli.config.schema import Config
from rampcli.errors import UsageError
from rampcli.models.huggingface_config import (
    INIT_FROM_KEY,
    check_init_from,
    check_same_model,
    read_config,
)
from rampcli.run_directory import RunDirectory

LENGTH_KEY = "data.sequence_length"
CONFIG_FILE = "config.json"
REMEDY = f"{INIT_FROM_KEY}=RUN_DIR, a run with a checkpoint"


def is_run(folder: Path) -> bool:
    """Returns whether a folder is a run directory, rather than one for transformers."""
    return RunDirectory(folder).config.is_file()


def starting_vocabulary(folder: Path) -> int | None:
    """Returns the size of the vocabulary of weights, or None if the folder does not exist.

    Raises:
        UsageError: the folder holds no weights.
    """
    if not os.path.exists(folder):
        return None
    if is_run(folder):
        return snapshot.read(RunDirectory(folder).config).model.vocab_size
    _check_is_model(folder)
    return read_config(folder).vocab_size


def check_starting_weights(config: Config) -> None:
    """Checks that `model.init_from` holds a model of the configured shape, if it is set.

    Raises:
        UsageError: it does not. The remedy has the settings of the folder's model.
    """
    if config.model.init_from is None:
        return
    folder = Path(config.model.init_from)
    if not is_run(folder):
        _check_is_model(folder)
        check_init_from(config)
        return
    theirs = snapshot.read(RunDirectory(folder).config)
    if not complete_checkpoints(RunDirectory(folder)):
        raise UsageError(
            f"{INIT_FROM_KEY}={folder} is a run that has not saved a checkpoint yet",
            keys=(INIT_FROM_KEY,),
            remedy=f"{REMEDY}, or {INIT_FROM_KEY}=null for random weights",
        )
    check_same_model(config.model, theirs.model, folder)
    ours, length = config.data.sequence_length, theirs.data.sequence_length
    if config.model.position_embedding == "learned" and ours != length:
        raise UsageError(
            f"{folder} has learned positions for {LENGTH_KEY}={length}, here {ours}",
            keys=(INIT_FROM_KEY, LENGTH_KEY),
            remedy=f"{LENGTH_KEY}={length}",
        )


def _check_is_model(folder: Path) -> None:
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
    run = next(filter(is_run, folder.parents), None) if exists else None
    raise UsageError(
        f"{INIT_FROM_KEY}={folder} {wrong}",
        keys=(INIT_FROM_KEY,),
        remedy=f"{INIT_FROM_KEY}={run}, the run directory"
        if run
        else f"{REMEDY}, or a folder with {CONFIG_FILE} and *.safetensors",
    )
