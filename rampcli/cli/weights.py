"""`rampcli generate`, `export` and `import`: the weights of trained models."""

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rampcli.cli.options import AsJson, Run
from rampcli.errors import NoCheckpointError, UsageError, visible

if TYPE_CHECKING:
    from rampcli.runs.manifest import Checkpoint

LONG_TO_LOAD_BYTES = 10**9
"""Checkpoints from this size on are announced even if nobody watches a terminal."""
StepOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Use the checkpoint after N steps. Default: the newest."),
]
Average = Annotated[
    str | None,
    typer.Option(
        metavar="KIND",
        help="Use an average of the weights: ema or merge, as the run has set them, or last:N, the"
        " mean of the last N checkpoints. Default: the weights themselves.",
    ),
]


def generate(
    run: Run,
    prompt: Annotated[str, typer.Option("--prompt", "-p", metavar="TEXT")],
    max_tokens: Annotated[int | None, typer.Option(min=1, metavar="N")] = None,
    temperature: Annotated[float, typer.Option(min=0.0, metavar="T")] = 0.8,
    top_k: Annotated[int | None, typer.Option(min=1, metavar="K")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**62, metavar="N")] = 0,
    step: StepOption = None,
    average: Average = None,
    raw: Annotated[bool, typer.Option("--raw")] = False,
    as_json: AsJson = False,
) -> None:
    """Continue a text with a trained model.

    A model that was trained with a chat template answers it.

    Args:
        prompt: Text to continue.
        max_tokens: Maximum number of tokens to generate. Default: as many as fit.
        temperature: Sampling temperature. 0 always takes the likeliest token.
        top_k: Sample from the K likeliest tokens.
        seed: Random seed of sampling.
        raw: Continue the text as it is, without the chat template of the run.
    """
    _run_on_checkpoint(
        "rampcli.weights.generate",
        run,
        prompt=prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        seed=seed,
        step=step,
        average=average,
        raw=raw,
        as_json=as_json,
    )


def export(
    run: Run,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER")],
    dtype: Annotated[str | None, typer.Option(metavar="TYPE")] = None,
    step: StepOption = None,
    average: Average = None,
    as_json: AsJson = False,
) -> None:
    """Export a trained model to a folder for transformers.

    Args:
        folder: Folder to create and write to.
        dtype: Type of the weights: fp32 or bf16. Default: the run's.
    """
    if dtype not in (None, "fp32", "bf16"):
        raise UsageError(
            f"--dtype {dtype} is neither fp32 nor bf16", remedy="--dtype fp32 or --dtype bf16"
        )
    _run_on_checkpoint(
        "rampcli.weights.export",
        run,
        folder=str(folder),
        dtype=dtype,
        step=step,
        average=average,
        as_json=as_json,
    )


def import_(
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    file: Annotated[Path, typer.Argument(metavar="FILE")],
    as_json: AsJson = False,
) -> None:
    """Import a Hugging Face model to train it further.

    Writes the model's settings, and where its weights are, to a file of the config group model.

    Args:
        model: Folder as save_pretrained writes it, or a model of the Hugging Face hub: NAME or
            NAME@REVISION.
        file: File to write: CONF/model/NAME.yaml.
    """
    from rampcli.files.hub import is_pinned
    from rampcli.weights.import_model import import_model

    settings = import_model(model, file)
    if as_json:
        typer.echo(json.dumps({"file": str(file), "settings": settings}))
        return
    folder = shlex.quote(str(file.parent.parent))
    command = f"rampcli pretrain --factory NAME --config-dir {folder} model={file.stem}"
    lines = [f"wrote {file}", "train it with:", f"  {command}"]
    if is_pinned(settings["init_from"]):
        lines.insert(1, f"a run will download the weights of {settings['init_from']}")
    for line in lines:
        typer.echo(visible(line))


def _run_on_checkpoint(module: str, word: str, **options: Any) -> None:
    """Runs a program that needs torch on a trained run, and exits with its exit code.

    The program takes the options, and the path of the run, with
    `rampcli.weights.program.given_options`.
    """
    from rampcli.batch.averages import AVERAGES, is_merge, merged_checkpoints
    from rampcli.machine.lifeline import run_program
    from rampcli.runs.directory import find_run
    from rampcli.runs.manifest import NOT_NAMED, complete_checkpoints, name_remedy

    average = options["average"]
    if average is not None and is_merge(average):
        merged_checkpoints(average, name="--average")
    elif average not in (None, *AVERAGES):
        raise UsageError(
            f"--average {average} is not ema, merge or a mean such as last:2",
            remedy=[f"--average {kind}" for kind in AVERAGES],
        )
    run = find_run(word)
    if not (found := complete_checkpoints(run)):
        if (renamed := name_remedy(run)) is not None:
            raise NoCheckpointError(f"{run.path} {NOT_NAMED}", remedy=renamed)
        raise NoCheckpointError(
            f"{run.path} has no checkpoint yet", remedy="again after the first checkpoint"
        )
    if (note := loading_note(found, options["step"], is_watched=sys.stderr.isatty())) is not None:
        typer.echo(note, err=True)
    raise typer.Exit(run_program(module, [json.dumps({"run_dir": str(run.path), **options})]))


def loading_note(
    checkpoints: "Sequence[Checkpoint]", step: int | None, *, is_watched: bool
) -> str | None:
    """Returns which checkpoint is loaded and how large it is, or None if that is not worth a line.

    Args:
        step: step of the checkpoint that is asked for, or None for the newest.
        is_watched: whether a terminal shows the line.
    """
    from rampcli.launch.doctor.check import format_bytes

    chosen = next((one for one in checkpoints if one.step == step), checkpoints[-1])
    size_bytes = sum(file["bytes"] for file in chosen.files.values())
    if not is_watched and size_bytes < LONG_TO_LOAD_BYTES:
        return None
    run_dir = chosen.path.parents[1]
    return visible(f"loading step {chosen.step} of {run_dir}: {format_bytes(size_bytes)}")
