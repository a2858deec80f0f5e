"""What a run has trained, read by one process and without the others."""

import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from rampcli.checkpoint.save import MODEL, TOKENIZER
from rampcli.checkpoint.shards import Block, block_of
from rampcli.checkpoint.tensor_files import SUFFIX, find_blocks, read_blocks
from rampcli.config import snapshot
from rampcli.config.model_size import BYTES_PER_NUMBER, count_parameters
from rampcli.config.schema import Config
from rampcli.data.tokenizer import open_tokenizer
from rampcli.errors import DamagedFileError, NoCheckpointError, UsageError, reason_of, visible
from rampcli.models.decoder import Decoder
from rampcli.run_directory import Checkpoint, RunDirectory

MOST_BYTES_OF_PARAMETER = 64
"""In a checkpoint: its value in fp32, the state of its optimiser, and its share of the headers."""
MOST_BYTES_BESIDES = 2**30
"""Headers and tokenizer of a checkpoint whose model is tiny."""


def open_run(path: Path, *, step: int | None) -> tuple[Config, Checkpoint]:
    """Returns the settings of a run and its newest checkpoint that is whole, or that of `step`.

    A newer one that is damaged is passed over, with a warning on standard error.

    Raises:
        UsageError: there is no run.
        ForeignCheckpointError: the checkpoint belongs to another configuration than config.yaml.
        NoCheckpointError: there is no such checkpoint, or it is damaged.
    """
    run = RunDirectory(path)
    config = snapshot.read(run.config)
    found, unreadable = run.read_checkpoints()
    damages = [error.message for error in unreadable]
    for checkpoint in reversed(found):
        if step not in (None, checkpoint.step):
            continue
        snapshot.check_settings(
            checkpoint.manifest["settings"], snapshot.identity(config), run_dir=path
        )
        damage = damage_of(config, checkpoint)
        if damage is None:
            for reason in damages:
                print(f"warning: {reason}", file=sys.stderr)  # noqa: T201
            return config, checkpoint
        damages.append(visible(f"{checkpoint.path.name} is damaged: {damage}"))
    which = "checkpoint" if step is None else f"checkpoint of step {step}"
    steps = ", ".join(str(checkpoint.step) for checkpoint in found)
    remedy = f"--step, one of {steps}" if step is not None and steps else "training first"
    raise NoCheckpointError(
        f"{path} has no {which} that is whole{f': {damages[-1]}' if damages else ''}", remedy=remedy
    )


def damage_of(config: Config, checkpoint: Checkpoint) -> str | None:
    """Returns why a checkpoint does not hold the model that the settings describe, or None if it does.

    Sizes come first and headers second, so that nothing is built or read by numbers that the files do not bear out.
    """
    try:
        return (
            checkpoint.damage(by_checksum=False)
            or _misfit(config, checkpoint)
            or checkpoint.damage()
        )
    except (DamagedFileError, OSError) as error:
        return reason_of(error)


def _misfit(config: Config, checkpoint: Checkpoint) -> str | None:
    """Returns why files of these sizes cannot hold the model, or None.

    Raises:
        DamagedFileError: their headers show that they do not hold it.
    """
    parameters = count_parameters(config.model, sequence_length=config.data.sequence_length)
    held = sum(facts["bytes"] for name, facts in checkpoint.files.items() if name.endswith(SUFFIX))
    if (
        not BYTES_PER_NUMBER * parameters
        <= held
        <= MOST_BYTES_OF_PARAMETER * parameters + MOST_BYTES_BESIDES
    ):
        return f"its files have {held:,} bytes, and the model in config.yaml has {parameters:,} parameters"
    with torch.device("meta"):
        model = Decoder(config.model, sequence_length=config.data.sequence_length)
    find_blocks(checkpoint.path, checkpoint.files, _weights(dict(model.named_parameters())))
    return None


def load_model(
    config: Config, checkpoint: Checkpoint, *, sequence_length: int, device: torch.device
) -> Decoder:
    """The whole model, with room for sequences of `sequence_length` tokens."""
    with torch.device("meta"):
        model = Decoder(config.model, sequence_length=sequence_length)
    model.to_empty(device=device)
    model.tie()
    model.fill_buffers()
    read_weights(checkpoint, dict(model.named_parameters()))
    return model


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer | None:
    """Returns the tokenizer of the text that a checkpoint was trained on, or None if it has none.

    Raises:
        DamagedFileError: its file is not a tokenizer.
    """
    if TOKENIZER not in checkpoint.files:
        return None
    try:
        return open_tokenizer(checkpoint.path / TOKENIZER)
    except UsageError as error:
        raise DamagedFileError(error.message) from error


def read_weights(checkpoint: Checkpoint, weights: Mapping[str, Tensor]) -> None:
    """Read weights by their names into tensors of their shapes.

    Raises:
        DamagedFileError: the checkpoint does not hold them whole.
    """
    read_blocks(checkpoint.path, checkpoint.files, _weights(weights))


def _weights(weights: Mapping[str, Tensor]) -> list[Block]:
    return [block_of(f"{MODEL}{name}", tensor) for name, tensor in weights.items()]
