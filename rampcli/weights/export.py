"""Exports a checkpoint as a folder that transformers loads. The program of `rampcli export`."""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from rampcli.checkpoint.load import DTYPES, ReadWeights, open_run, reader_of
from rampcli.data.special_tokens import GENERATION_FILE
from rampcli.errors import UsageError, reason_of, visible
from rampcli.files.guarded_folder import write_json
from rampcli.models.huggingface_config import to_huggingface
from rampcli.models.huggingface_tensors import Place, group_by_tensor, places
from rampcli.settings.config import Config
from rampcli.weights.program import given_options, run_and_exit
from rampcli.weights.tokenizer import (
    read_tokenizer,
    saved_special_tokens,
    token_ids,
    write_tokenizer,
)

EXPORTING = ".rampcli-export-"
"""Beginning of the name of the folder that an export is written to first."""
MAX_FILE_BYTES = 5 * 10**9
"""Largest size of one file of weights; the default of `save_pretrained` in transformers 4."""


def main() -> None:
    """Exports what the command line asks for and prints what was written."""
    options = given_options()
    written = export(
        Path(options.run_dir),
        Path(options.folder),
        step=options.step,
        dtype=options.dtype,
        average=options.average,
    )
    shown = ", ".join(f"{key} {value}" for key, value in written.items() if key != "folder")
    line = json.dumps(written) if options.as_json else visible(f"wrote {options.folder}: {shown}")
    print(line)  # noqa: T201


def export(
    run_dir: Path,
    folder: Path,
    *,
    step: int | None = None,
    dtype: str | None = None,
    average: str | None = None,
) -> dict[str, Any]:
    """Writes weights, config.json, generation_config.json and, if the run has one, the tokenizer.

    Args:
        folder: new or empty folder to write.
        step: step of the checkpoint. None takes the newest one.
        dtype: a key of `DTYPES`. None takes the precision of the run.
        average: as of `reader_of`. None exports the weights themselves.

    Returns:
        Folder, step, average, steps of a mean, class in transformers, dtype, tokenizer and the
        tokens that end a text, as `--json` prints them.

    Raises:
        RampcliError: there is nothing to export, transformers has no class for the model, or
            `folder` exists and is not an empty folder.
        OSError: writing failed, for example because the disk is full. Nothing is left behind.
    """
    folder = _check_free(folder)
    config, checkpoint = open_run(run_dir, step=step)
    read, steps = reader_of(config, checkpoint, average)
    chosen = DTYPES[dtype or config.trainer.precision]
    described = to_huggingface(
        config.model,
        sequence_length=config.data.sequence_length,
        dtype=str(chosen).removeprefix("torch."),
    )
    ids: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None}
    tokenizer = read_tokenizer(config, checkpoint)
    if tokenizer is not None:
        special_tokens = saved_special_tokens(checkpoint, tokenizer)
        ids = token_ids(special_tokens, tokenizer)
    with _temporary_for(folder) as temporary:
        _write_weights(config, read, temporary, dtype=chosen)
        write_json(temporary / "config.json", described | ids)
        write_json(temporary / GENERATION_FILE, ids)
        if tokenizer is not None:
            length = config.data.sequence_length
            write_tokenizer(temporary, tokenizer, special_tokens, sequence_length=length)
    return {
        "folder": str(folder),
        "step": checkpoint.step,
        **({} if average is None else {"average": average}),
        **({"steps": steps} if len(steps) > 1 else {}),
        "class": described["architectures"][0],
        "dtype": described["torch_dtype"],
        "tokenizer": None if tokenizer is None else f"{tokenizer.get_vocab_size()} tokens",
        "eos_token_id": ids["eos_token_id"],
    }


def _check_free(path: Path) -> Path:
    """Returns the absolute path of a folder that does not exist yet or is empty."""
    folder = Path(os.path.abspath(path))
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder} exists and is not a folder", remedy="a new folder")
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty", remedy="a new or empty folder")
    return folder


@contextmanager
def _temporary_for(folder: Path) -> Iterator[Path]:
    """Yields a temporary folder that is renamed to `folder` at the end.

    After an error or Ctrl-C it is deleted, with all parents of `folder` that were created.
    """
    missing = [parent for parent in folder.parents if not parent.exists()]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=EXPORTING, dir=folder.parent) as place:
            temporary = Path(place) / "content"  # readable by others, unlike the temporary folder
            temporary.mkdir()
            yield temporary
            os.rename(temporary, folder)  # fails if a link or a filled folder has appeared
    except BaseException as error:
        if isinstance(error, OSError) and EXPORTING in os.fsdecode(error.filename or EXPORTING):
            error.filename = str(folder)  # the name of the temporary folder tells a user nothing
        for parent in missing:
            with suppress(OSError):  # another process has put something there
                parent.rmdir()
        raise


def _write_weights(config: Config, read: ReadWeights, folder: Path, *, dtype: torch.dtype) -> None:
    """Writes the weights file by file, so that only one file's weights are in memory at a time."""
    found = places(config.model, sequence_length=config.data.sequence_length)
    files = list(_split_into_files(found, bytes_per_number=dtype.itemsize))
    weight_map: dict[str, str] = {}
    for number, parameters_of in enumerate(files, start=1):
        name = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        name = "model.safetensors" if len(files) == 1 else name
        weights = {
            parameter: torch.empty(found[parameter].shape)
            for parameters in parameters_of.values()
            for parameter in parameters
        }
        read(weights)
        tensors: dict[str, Tensor] = {}
        for tensor, parameters in parameters_of.items():
            joint = torch.cat([weights.pop(parameter) for parameter in parameters]).to(dtype)
            transposed = found[parameters[0]].transposed
            tensors[tensor] = (joint.T if transposed else joint).contiguous()
        _save_tensors(tensors, folder / name)
        weight_map |= dict.fromkeys(tensors, name)
    if len(files) > 1:
        index = {"metadata": {}, "weight_map": weight_map}
        write_json(folder / "model.safetensors.index.json", index)


def _save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:  # raised when the disk is full, too
        if found := re.search(r"\(os error (\d+)\)", str(error)):
            number = int(found[1])
            raise OSError(number, os.strerror(number), str(path)) from error
        raise OSError(f"cannot write {path.name}: {reason_of(error)}") from error
    path.chmod(0o644)  # save_file makes files that only their owner can read


def _split_into_files(
    found: Mapping[str, Place], *, bytes_per_number: int
) -> Iterator[dict[str, list[str]]]:
    """Yields the content of each file: its tensors, each with the parameters that make it up."""
    content: dict[str, list[str]] = {}
    size = 0
    for tensor, names in group_by_tensor(found).items():
        tensor_bytes = sum(math.prod(found[name].shape) for name in names) * bytes_per_number
        if content and size + tensor_bytes > MAX_FILE_BYTES:
            yield content
            content, size = {}, 0
        content[tensor] = names
        size += tensor_bytes
    yield content


if __name__ == "__main__":
    run_and_exit(main)
