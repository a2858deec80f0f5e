"""A checkpoint as a folder that transformers loads: `python -m rampcli.weights.export RUN_DIR FOLDER [--step N] [--dtype fp32|bf16]`."""

import argparse
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from rampcli.checkpoint.load_weights import open_run, read_weights, tokenizer_of
from rampcli.checkpoint.manifest import Checkpoint
from rampcli.config.huggingface import to_huggingface
from rampcli.config.schema import Config
from rampcli.errors import UsageError, reason_of
from rampcli.models.decoder import Decoder
from rampcli.models.huggingface import joined, places
from rampcli.own_folder import replace_file, write_json
from rampcli.weights.program import leave_after

MOST_BYTES = 5 * 10**9
"""Of one file, as save_pretrained has it."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def main() -> None:
    """Export as the command line says, and say what was written."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--step", type=int)
    parser.add_argument("--dtype", choices=DTYPES)
    parser.add_argument("--json", action="store_true")
    words = parser.parse_args()
    written = export(words.run_dir, words.folder, step=words.step, dtype=words.dtype)
    shown = ", ".join(f"{key} {value}" for key, value in written.items() if key != "folder")
    print(json.dumps(written) if words.json else f"wrote {words.folder}: {shown}")  # noqa: T201


def export(
    run_dir: Path, folder: Path, *, step: int | None = None, dtype: str | None = None
) -> dict[str, Any]:
    """Write weights, config.json and, where the run has one, the tokenizer; what was written.

    Args:
        run_dir: of the run.
        folder: to be made.
        step: of the checkpoint; the newest, if None.
        dtype: of the weights; that which the run computes with, if None.

    Raises:
        RampcliError: there is nothing to export, transformers has no class for the model, or `folder` is not free.
        OSError: the disk is full, say. Nothing is left then.
    """
    folder = free_folder(folder)
    config, checkpoint = open_run(run_dir, step=step)
    chosen = DTYPES[dtype or config.trainer.precision]
    described = to_huggingface(
        config.model,
        sequence_length=config.data.sequence_length,
        dtype=str(chosen).removeprefix("torch."),
    )
    tokenizer = tokenizer_of(checkpoint)
    with filling(folder) as aside:
        _write_weights(config, checkpoint, aside, dtype=chosen)
        write_json(aside / "config.json", described)
        if tokenizer is not None:
            replace_file(aside / "tokenizer.json", tokenizer.to_str(pretty=True))
            write_json(
                aside / "tokenizer_config.json",
                {
                    "tokenizer_class": "PreTrainedTokenizerFast",
                    "model_max_length": config.data.sequence_length,
                    "clean_up_tokenization_spaces": False,
                },
            )
    return {
        "folder": str(folder),
        "step": checkpoint.step,
        "class": described["architectures"][0],
        "dtype": described["torch_dtype"],
        "tokenizer": None if tokenizer is None else f"{tokenizer.get_vocab_size()} tokens",
    }


def free_folder(path: Path) -> Path:
    """Returns the absolute path of a folder that may be made: nothing is there, or an empty folder.

    Raises:
        UsageError: something else is there. A symbolic link is not followed.
    """
    folder = Path(os.path.abspath(path))
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder} is not a folder", remedy="another folder")
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty", remedy="another folder")
    return folder


@contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """Gives a new folder beside `folder` that takes its name in the end. After an error nothing is left, Ctrl-C included."""
    missing = [parent for parent in folder.parents if not parent.exists()]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".rampcli-export-", dir=folder.parent) as place:
            aside = Path(place) / "filled"  # which others may read, unlike the one around it
            aside.mkdir()
            yield aside
            os.rename(
                aside, folder
            )  # refuses a link and a folder that is not empty, which came there meanwhile
    except BaseException:
        for parent in missing:
            with suppress(OSError):  # someone else has put something there
                parent.rmdir()
        raise


def _write_weights(
    config: Config, checkpoint: Checkpoint, folder: Path, *, dtype: torch.dtype
) -> None:
    """One file after another, so that one file's weights are held at a time."""
    with torch.device("meta"):
        model = Decoder(config.model, sequence_length=config.data.sequence_length)
    found = places(config.model, sequence_length=config.data.sequence_length)
    groups = list(_groups(joined(found), model, bytes_per_number=dtype.itemsize))
    files: dict[str, str] = {}
    for number, group in enumerate(groups, start=1):
        name = (
            "model.safetensors"
            if len(groups) == 1
            else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        )
        weights = {
            ours: torch.empty(shape) for parts in group.values() for ours, shape in parts.items()
        }
        read_weights(checkpoint, weights)
        tensors: dict[str, Tensor] = {}
        for tensor, parts in group.items():
            whole = torch.cat([weights.pop(ours) for ours in parts]).to(dtype)
            tensors[tensor] = (
                whole.T if found[next(iter(parts))].transposed else whole
            ).contiguous()
        try:
            save_file(tensors, folder / name, metadata={"format": "pt"})
        except SafetensorError as error:  # which is how that library says that a disk is full
            raise OSError(f"cannot write {name}: {reason_of(error)}") from error
        (folder / name).chmod(0o644)  # safetensors lets nobody else read it
        files |= dict.fromkeys(tensors, name)
    if len(groups) > 1:
        write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": files})


def _groups(
    tensors: Mapping[str, Sequence[str]], model: Decoder, *, bytes_per_number: int
) -> Iterator[dict[str, dict[str, torch.Size]]]:
    """Their tensors, with ours that make each up and the shapes of those, file by file."""
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    group: dict[str, dict[str, torch.Size]] = {}
    size = 0
    for tensor, names in tensors.items():
        bytes_of = sum(shapes[name].numel() for name in names) * bytes_per_number
        if group and size + bytes_of > MOST_BYTES:
            yield group
            group, size = {}, 0
        group[tensor] = {name: shapes[name] for name in names}
        size += bytes_of
    yield group


if __name__ == "__main__":
    leave_after(main)
