"""Where a run's initial weights come from (`model.init_from`). Imports no torch."""

import os
from dataclasses import replace
from pathlib import Path

from rampcli.batch.step_schedule import LENGTH_KEY
from rampcli.checkpoint.compatibility import settings_of_checkpoint
from rampcli.config import snapshot
from rampcli.config.layers import Layer, Precedence, Stack, sources_named
from rampcli.data.chat_template import TOKENIZER_CONFIG_FILE, read_tokenizer_config, tokens_of
from rampcli.data.special_tokens import tokenizer_path
from rampcli.errors import ErrorReport, UsageError, naming_setting, set_to
from rampcli.files import hub
from rampcli.files.hub import CONFIG_FILE, TOKENIZER_FILE
from rampcli.models.huggingface_config import (
    FOLDER_WANTED,
    as_settings,
    check_model_folder,
    check_same_model,
    has_weights,
    read_config,
    refusal,
)
from rampcli.models.huggingface_tensors import StoredWeights
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import NOT_NAMED, complete_checkpoints, name_remedy
from rampcli.settings.config import Config
from rampcli.settings.data import DataConfig
from rampcli.settings.model import ModelConfig
from rampcli.settings.model_parts import POSITION_EMBEDDINGS

FROM_FOLDER = "from_folder"
"""Option of the group `model`: the model in `model.init_from`."""
RUN_REMEDY = f"{ModelConfig.init_from}=RUN_DIR, a run with a checkpoint"
HUB_REMEDY = f"{RUN_REMEDY}, or a model of the hub with {CONFIG_FILE} and *.safetensors"
WEIGHTS_REMEDY = f"{ModelConfig.init_from}=FOLDER, as rampcli export or save_pretrained wrote it"


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
    return read_config(_model_folder(text)).vocab_size


def check_starting_weights(config: Config) -> Path | None:
    """Returns the folder of `model.init_from`, or None if it is not set.

    Weights of a model of the hub are downloaded.

    Raises:
        RampcliError: as `check_starting_model`, or the weights cannot be downloaded.
    """
    text, folder = config.model.init_from, check_starting_model(config)
    if text is not None and folder is not None and hub.is_pinned(text) and not is_run(folder):
        with naming_setting(ModelConfig.init_from):
            hub.download_weights(hub.Snapshot(text, folder), remedy=HUB_REMEDY)
    return folder


def check_starting_model(config: Config) -> Path | None:
    """Returns the folder of `model.init_from`, or None if it is not set. Downloads no weights.

    The folder is a run, or holds a Hugging Face model, of the configured shape.

    Raises:
        RampcliError: the folder holds no such weights, or its config.json cannot be downloaded. If
            it holds another model, the remedy has the settings of that model.
    """
    text = config.model.init_from
    if text is None:
        return None
    folder = Path(text).expanduser()
    if is_run(folder):
        _check_run(config, folder)
        return folder
    folder = _model_folder(text)
    if hub.is_pinned(text):
        with naming_setting(ModelConfig.init_from):
            check_model_folder(config, folder, name=text)
        return folder
    check_model_folder(config, folder, name=str(folder))
    if not has_weights(folder):
        raise refusal(
            f"{folder} holds no *.safetensors", remedy="a folder that save_pretrained wrote"
        )
    return folder


def check_tensors(config: Config, folder: Path) -> list[str]:
    """Checks the tensors in the folder of `model.init_from` against the model.

    Returns:
        A note on the tensors that the model does not have, if there are any.

    Raises:
        DamagedFileError: as `StoredWeights`, or as its `check_tied`.
    """
    if is_run(folder):
        return []
    stored = StoredWeights(folder, config.model, sequence_length=config.data.sequence_length)
    stored.check_tied()
    return [stored.describe_unused()] if stored.unused else []


def _check_run(config: Config, folder: Path) -> None:
    """Checks that a run has a checkpoint of a model of the configured shape."""
    run = RunDirectory(folder)
    theirs = snapshot.read(run.config)
    if checkpoints := complete_checkpoints(run):
        theirs = settings_of_checkpoint(theirs, checkpoints[-1])
    else:
        renamed = name_remedy(run)
        wrong = "has not saved a checkpoint yet" if renamed is None else NOT_NAMED
        raise refusal(
            f"{ModelConfig.init_from}={folder} is a run that {wrong}",
            remedy=(
                renamed or RUN_REMEDY,
                set_to(ModelConfig.init_from, None, note=" for random weights"),
            ),
        )
    check_same_model(config.model, theirs.model, str(folder))
    ours, length = config.data.sequence_length, theirs.data.sequence_length
    is_learned = POSITION_EMBEDDINGS[config.model.position_embedding].is_learned
    if is_learned and ours != length:
        raise UsageError(
            f"{folder} has learned positions for {LENGTH_KEY}={length}, here {ours}",
            keys=(ModelConfig.init_from, LENGTH_KEY),
            remedy=set_to(LENGTH_KEY, length),
        )


def _model_folder(text: str, *, remedy: str | None = None) -> Path:
    """Returns the folder with the settings of a model, which is not a run directory.

    Args:
        text: value of `model.init_from`. Of a model of the hub, only `config.json` is downloaded.
        remedy: what to try if the folder has no settings. If it is inside a run directory, the
            remedy names that instead.
    """
    if hub.is_pinned(text):
        with naming_setting(ModelConfig.init_from):
            return hub.open_snapshot(text, CONFIG_FILE, remedy=HUB_REMEDY).folder
    folder = Path(text).expanduser()
    if os.path.isfile(folder / CONFIG_FILE):
        return folder
    exists = os.path.exists(folder)
    if os.path.isdir(folder):
        wrong = f"holds neither a run (config.yaml) nor a model of Hugging Face ({CONFIG_FILE})"
    else:
        wrong = "is a file" if exists else "does not exist"
    elsewhere = remedy or f"{RUN_REMEDY}, or {FOLDER_WANTED}"
    if hub.is_hub_name(text):
        elsewhere += (
            f", or NAME@COMMIT for a model of the hub; `rampcli import {text}"
            " conf/model/NAME.yaml` finds its commit"
        )
    run = next(filter(is_run, folder.parents), None) if exists else None
    raise refusal(
        f"{ModelConfig.init_from}={folder} {wrong}",
        remedy=set_to(ModelConfig.init_from, str(run), note=", the run directory")
        if run
        else elsewhere,
    )


def with_model_of_folder(stack: Stack, *, report: ErrorReport) -> Stack:
    """Adds the settings of the folder in `model.init_from` if `model=from_folder` is chosen.

    The folder gives the settings of the model, the tokenizer and, for pairs, the token that ends a
    response. They replace those of the files of conf/. Settings of the command line and of Python
    replace them.

    Args:
        report: receives the errors. After an error, the stack is returned unchanged.
    """
    if not takes_model_from_folder(stack):
        return stack
    with report.noting(), sources_named(stack):
        layers = _layers_of(stack, report)
        return replace(stack, overrides=(*layers, *stack.overrides))
    return stack


def takes_model_from_folder(stack: Stack) -> bool:
    """Returns whether `model=from_folder` is chosen."""
    return stack.choices.get("model") == FROM_FOLDER


def _layers_of(stack: Stack, report: ErrorReport) -> list[Layer]:
    """Returns a layer for each file of the folder that gives settings."""
    given = stack.entry(ModelConfig.init_from).value
    if given is None:
        raise refusal(
            f"model={FROM_FOLDER} takes the model from {ModelConfig.init_from}, which is not given",
            remedy=WEIGHTS_REMEDY,
        )
    if is_run(Path(given).expanduser()):
        raise refusal(
            f"model={FROM_FOLDER} takes the model from a Hugging Face folder, and"
            f" {ModelConfig.init_from}={given} is a run",
            remedy=f"rampcli export {given} out, then {ModelConfig.init_from}=out",
        )
    folder = _model_folder(given, remedy=WEIGHTS_REMEDY)
    shape = as_settings(read_config(folder))
    files = {CONFIG_FILE: {f"model.{name}": value for name, value in shape.items()}}
    if stack.entry(DataConfig.source).value in ("text", "pairs"):
        files |= _tokens_of(given, folder, stack)
    return [
        Layer.of(f"{given}/{file}", Precedence.CHOSEN, values, report=report)
        for file, values in files.items()
    ]


def _tokens_of(given: str, folder: Path, stack: Stack) -> dict[str, dict[str, str]]:
    """Returns the settings of the folder's tokenizer by file, or none if another one is set."""
    if stack.precedence(DataConfig.tokenizer) > Precedence.SCHEMA:
        return {}
    if not (hub.is_pinned(given) or (folder / TOKENIZER_FILE).is_file()):
        raise refusal(
            f"{folder} has no {TOKENIZER_FILE}",
            remedy=f"{DataConfig.tokenizer}=FILE, the {TOKENIZER_FILE} of the model",
        )
    files = {TOKENIZER_FILE: {DataConfig.tokenizer: given}}
    beside = tokenizer_path(given).parent
    end = tokens_of(read_tokenizer_config(beside)).get("eos_token")
    if end is not None and stack.entry(DataConfig.source).value == "pairs":
        files[TOKENIZER_CONFIG_FILE] = {DataConfig.response_end: end}
    return files
