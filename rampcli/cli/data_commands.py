"""Commands of `rampcli data`. Each imports what it needs when it runs."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rampcli.cli.light_typer import LightTyper
from rampcli.cli.options import AsJson

data = LightTyper()


class OnBadRecord(StrEnum):
    """What to do with a record without a valid text."""

    stop = "stop"
    skip = "skip"


@data.command("build")
def build(
    inputs: Annotated[
        list[Path],
        typer.Argument(metavar="INPUT", help="Text files, or folders of them.", show_default=False),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="PREFIX",
            help="Write PREFIX.bin, PREFIX.idx and so on.",
            show_default=False,
        ),
    ],
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="bytes, chars, a tokenizer.json or its folder, or a model of the hub.",
            show_default=False,
        ),
    ] = None,
    train_bpe: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Train a BPE tokenizer with a vocabulary of N tokens, in place of --tokenizer.",
            show_default=False,
        ),
    ] = None,
    eod: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            help="End-of-document token, or none. Default: the tokenizer's own.",
            show_default=False,
        ),
    ] = None,
    text_key: Annotated[
        str, typer.Option(metavar="KEY", help="Key or column of the text in JSON and Parquet.")
    ] = "text",
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Number of processes. Default: at most one per CPU.",
            show_default=False,
        ),
    ] = None,
    on_bad_record: Annotated[
        OnBadRecord, typer.Option(help="What to do with a record without a valid text.")
    ] = OnBadRecord.stop,
    as_json: AsJson = False,
) -> None:
    """Encode text into a corpus to train on. If interrupted, the same command resumes."""
    from rampcli.cli.data import run_build
    from rampcli.data.building.options import BuildOptions

    options = BuildOptions(
        inputs=tuple(inputs),
        output=output,
        tokenizer=tokenizer,
        train_bpe=train_bpe,
        eod=eod,
        text_key=text_key,
        workers=workers,
        on_bad_record=on_bad_record.value,
    )
    raise typer.Exit(run_build(options, as_json=as_json))


@data.command("inspect")
def inspect(
    prefix: Annotated[
        Path,
        typer.Argument(
            metavar="PREFIX", help="Corpus in PREFIX.bin and PREFIX.idx.", show_default=False
        ),
    ],
    verify: Annotated[
        bool, typer.Option("--verify", help="Read the whole corpus and list its faults.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Summarise a corpus that rampcli or Megatron wrote."""
    from rampcli.cli.data import run_inspection

    raise typer.Exit(run_inspection(prefix, verify=verify, as_json=as_json))
