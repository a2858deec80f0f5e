"""Trained weights in and out: what `generate`, `export` and `import` do."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
import yaml

from rampcli.checkpoint.manifest import complete_checkpoints
from rampcli.config.huggingface import as_settings, has_weights, read_config
from rampcli.errors import NoCheckpointError, UsageError, visible
from rampcli.launch.program import run_program
from rampcli.own_folder import replace_file
from rampcli.run_directory import RunDirectory


def run_on_checkpoint(
    module: str, run_dir: Path, words: Sequence[str], options: Mapping[str, Any], *, as_json: bool
) -> None:
    """Let a program of the engine work on a run, and leave with its exit code.

    Raises:
        UsageError: there is no run.
        NoCheckpointError: it has no checkpoint yet.
    """
    run = RunDirectory(run_dir)
    if not run.config.is_file():
        raise UsageError(
            f"{run_dir} is no run directory: it has no config.yaml",
            remedy="runs/NAME, of a run that has trained",
        )
    if not complete_checkpoints(run):
        raise NoCheckpointError(f"{run_dir} has no checkpoint yet", remedy="the same once it has")
    given = [f"--{name}={value}" for name, value in options.items() if value is not None]
    code = run_program(
        module, [*given, *(["--json"] if as_json else []), "--", str(run_dir), *words]
    )
    raise typer.Exit(code)


def import_settings(folder: Path, file: Path, *, as_json: bool) -> None:
    """Write the settings of a folder's model, with `init_from`, as a file of the group `model`.

    Raises:
        UsageError: the folder holds no model that our decoder is, or the file does not belong to a group.
    """
    if file.suffix != ".yaml" or file.parent.name != "model":
        raise UsageError(
            f"{file} is no file of the group model", remedy=f"conf/model/{file.stem or 'mine'}.yaml"
        )
    if file.exists():
        raise UsageError(f"{file} is there already", remedy="another name")
    settings = as_settings(read_config(folder))
    if not has_weights(folder):
        raise UsageError(
            f"{folder} holds no *.safetensors", remedy="a folder that save_pretrained wrote"
        )
    settings["init_from"] = str(folder.resolve())
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(
        file,
        f"# {visible(folder.name)}, and its weights to start from.\n{yaml.safe_dump(settings, sort_keys=False)}",
    )
    how = f"rampcli pretrain --factory NAME --config-dir {file.parent.parent} model={file.stem}"
    typer.echo(
        json.dumps({"file": str(file), "settings": settings})
        if as_json
        else f"wrote {file}\ntrain it with:\n  {how}"
    )
