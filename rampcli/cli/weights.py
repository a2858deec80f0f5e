"""`rampcli generate`, `export` and `import`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from rampcli.errors import NoCheckpointError
from rampcli.hub import is_pinned
from rampcli.launch.program import run_program
from rampcli.runs.directory import find_run
from rampcli.runs.manifest import complete_checkpoints
from rampcli.weights.import_model import import_model


def run_on_checkpoint(
    module: str, run_dir: Path, words: Sequence[str], options: Mapping[str, Any], *, as_json: bool
) -> None:
    """Runs a program that needs torch on a trained run, and exits with its exit code.

    Args:
        module: program to run, a module of `rampcli.weights`.
        run_dir: run directory, or name of a run below runs/. Its path is the first argument.
        words: further arguments of the program.
        options: options of the program by name. None leaves an option out.
        as_json: let the program print JSON.

    Raises:
        UsageError: `run_dir` is not a run directory.
        NoCheckpointError: the run has no checkpoint yet.
    """
    run = find_run(str(run_dir))
    if not complete_checkpoints(run):
        raise NoCheckpointError(
            f"{run.path} has no checkpoint yet", remedy="again after the first checkpoint"
        )
    given = [f"--{name}={value}" for name, value in options.items() if value is not None]
    code = run_program(
        module, [*given, *(["--json"] if as_json else []), "--", str(run.path), *words]
    )
    raise typer.Exit(code)


def import_settings(model: str, file: Path, *, as_json: bool) -> None:
    """Writes a Hugging Face model's settings to a file and prints how to train it.

    Raises:
        RampcliError: as `import_model`.
    """
    settings = import_model(model, file)
    if as_json:
        typer.echo(json.dumps({"file": str(file), "settings": settings}))
        return
    command = f"rampcli pretrain --factory NAME --config-dir {file.parent.parent} model={file.stem}"
    typer.echo(f"wrote {file}")
    if is_pinned(settings["init_from"]):
        typer.echo(f"a run will download the weights of {settings['init_from']}")
    typer.echo(f"train it with:\n  {command}")
