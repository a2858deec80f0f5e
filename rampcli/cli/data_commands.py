"""The commands of `rampcli data`. What they need is imported when they run."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

data = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


class OnBadRecord(StrEnum):
    """What to do about a record that is no text."""

    stop = "stop"
    skip = "skip"


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


@data.command("build")
def build(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="INPUT...", help="Files of text, and folders of them.", show_default=False
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="PREFIX",
            help="Writes PREFIX.bin and its companions.",
            show_default=False,
        ),
    ],
    tokenizer: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="bytes, chars, or a tokenizer.json.", show_default=False),
    ] = None,
    train_bpe: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Train a tokenizer of N tokens instead.", show_default=False
        ),
    ] = None,
    eod: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            help="Comes after each document; none for nothing. What is usual, unless given.",
            show_default=False,
        ),
    ] = None,
    text_key: Annotated[
        str, typer.Option(metavar="KEY", help="Where JSON and Parquet have the text.")
    ] = "text",
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes: one per CPU, unless given.", show_default=False),
    ] = None,
    on_bad_record: Annotated[
        OnBadRecord, typer.Option(help="At a record that is no text.")
    ] = OnBadRecord.stop,
    as_json: AsJson = False,
) -> None:
    """Encode text into a corpus to train on. The same command goes on where it stopped."""
    from rampcli.cli.data import run_build
    from rampcli.data.building.build import Order

    order = Order(
        inputs=tuple(inputs),
        output=output,
        tokenizer=tokenizer,
        train_bpe=train_bpe,
        eod=eod,
        text_key=text_key,
        workers=workers,
        on_bad_record=on_bad_record.value,
    )
    raise typer.Exit(run_build(order, as_json=as_json))


@data.command("inspect")
def inspect(
    prefix: Annotated[
        Path,
        typer.Argument(metavar="PREFIX", help="Of PREFIX.bin and PREFIX.idx.", show_default=False),
    ],
    verify: Annotated[
        bool, typer.Option("--verify", help="Read all of it, and say whether anything is wrong.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a corpus holds, ours or one that Megatron wrote."""
    from rampcli.cli.data import run_inspection

    raise typer.Exit(run_inspection(prefix, verify=verify, as_json=as_json))
