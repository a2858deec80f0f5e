"""What a run has trained, read by one process and without the others."""

from collections.abc import Mapping
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from rampcli.config import snapshot
from rampcli.config.schema import Config
from rampcli.engine.blocks import block_of
from rampcli.engine.checkpoint import MODEL, TOKENIZER
from rampcli.engine.tensor_files import read_blocks
from rampcli.errors import NoCheckpointError
from rampcli.models.decoder import Decoder
from rampcli.run_directory import Checkpoint, RunDirectory


def open_run(path: Path, *, step: int | None) -> tuple[Config, Checkpoint]:
    """The settings of a run and one of its checkpoints: the newest that is whole, or that of `step`.

    Raises:
        UsageError: there is no run.
        NoCheckpointError: there is no such checkpoint, or it is damaged.
    """
    run = RunDirectory(path)
    config = snapshot.read(run.config)
    found = run.complete_checkpoints()
    chosen = [checkpoint for checkpoint in reversed(found) if step in (None, checkpoint.step)]
    for checkpoint in chosen:
        if checkpoint.damage() is None:
            return config, checkpoint
    which = "checkpoint" if step is None else f"checkpoint of step {step}"
    steps = ", ".join(str(checkpoint.step) for checkpoint in found)
    raise NoCheckpointError(
        f"{path} has no {which} that is whole", remedy=f"--step, one of {steps}" if step is not None and steps else "training first"
    )


def load_model(config: Config, checkpoint: Checkpoint, *, sequence_length: int, device: torch.device) -> Decoder:
    """The whole model, with room for sequences of `sequence_length` tokens."""
    with torch.device("meta"):
        model = Decoder(config.model, sequence_length=sequence_length)
    model.to_empty(device=device)
    model.tie()
    model.fill_buffers()
    read_weights(checkpoint, {name: parameter.detach() for name, parameter in model.named_parameters()})
    return model


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer | None:
    """What tells the meaning of the tokens that a checkpoint was trained on; None where nobody knew."""
    path = checkpoint.path / TOKENIZER
    return Tokenizer.from_file(str(path)) if path.is_file() else None


def read_weights(checkpoint: Checkpoint, weights: Mapping[str, Tensor]) -> None:
    """Read weights by their names into tensors of their shapes."""
    read_blocks(checkpoint.path, checkpoint.files, [block_of(f"{MODEL}{name}", tensor) for name, tensor in weights.items()])
