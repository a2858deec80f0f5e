"""`rampcli data build` and `rampcli data inspect`."""

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rampcli.batch.quantities import counted
from rampcli.cli.light_typer import LightTyper
from rampcli.cli.options import AsJson
from rampcli.errors import printable

HISTOGRAM_WIDTH = 40

data = LightTyper()


@data.command("build")
def build(
    inputs: Annotated[list[Path], typer.Argument(metavar="INPUT")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="PREFIX")],
    tokenizer: Annotated[str | None, typer.Option(metavar="NAME")] = None,
    train_bpe: Annotated[int | None, typer.Option(metavar="N")] = None,
    eod: Annotated[str | None, typer.Option(metavar="TOKEN")] = None,
    text_key: Annotated[str, typer.Option(metavar="KEY")] = "text",
    workers: Annotated[int | None, typer.Option(min=1, metavar="N")] = None,
    on_bad_record: Annotated[Literal["stop", "skip"], typer.Option()] = "stop",
    as_json: AsJson = False,
) -> None:
    """Encode text into a corpus to train on. If interrupted, the same command resumes.

    Args:
        inputs: Text files, or folders of them.
        output: Write PREFIX.bin, PREFIX.idx and so on.
        tokenizer: bytes, chars, a tokenizer.json or its folder, or a model of the hub.
        train_bpe: Train a BPE tokenizer with a vocabulary of N tokens, in place of --tokenizer.
        eod: End-of-document token, or none. Default: the tokenizer's own.
        text_key: Key or column of the text in JSON and Parquet.
        workers: Number of processes. Default: at most one per CPU.
        on_bad_record: What to do with a record without a valid text.
    """
    from rampcli.cli.data_build import run_build
    from rampcli.data.building.options import BuildOptions

    options = BuildOptions(
        inputs=tuple(inputs),
        output=output,
        tokenizer=tokenizer,
        train_bpe=train_bpe,
        eod=eod,
        text_key=text_key,
        workers=workers,
        on_bad_record=on_bad_record,
    )
    raise typer.Exit(run_build(options, as_json=as_json))


@data.command("inspect")
def inspect(
    prefix: Annotated[Path, typer.Argument(metavar="PREFIX")],
    verify: Annotated[bool, typer.Option("--verify")] = False,
    as_json: AsJson = False,
) -> None:
    """Summarise a corpus that rampcli or Megatron wrote.

    Args:
        prefix: Corpus in PREFIX.bin and PREFIX.idx.
        verify: Read the whole corpus and list its faults.
    """
    from rampcli.cli.console import build_console, say
    from rampcli.data import inspection

    gc.enable()
    faults = inspection.faults_of(prefix) if verify else []
    found = None if faults else inspection.inspect(prefix)
    if as_json:
        typer.echo(json.dumps((found or {}) | ({"faults": faults} if verify else {})))
    else:
        console = build_console()
        if found is not None:
            bar = "#" if console.options.ascii_only else "█"
            say(console, *_described(found, bar), *(["verified: no faults"] if verify else []))
        say(console, *(f"fault: {fault}" for fault in faults))
    raise typer.Exit(1 if faults else 0)


def _described(found: dict[str, Any], bar: str) -> Iterator[str]:
    """Yields the lines about a corpus, with a histogram whose bars consist of a character."""
    sequences = (
        f" in {found['sequences']:,} sequences" if found["sequences"] != found["documents"] else ""
    )
    rows = {
        "documents": f"{found['documents']:,}{sequences}",
        "tokens": f"{found['tokens']:,}",
        "type": found["type"],
        "tokenizer": found["tokenizer"] or "unknown",
        "vocabulary": "unknown" if found["vocab_size"] is None else f"{found['vocab_size']:,}",
        "largest token": "none"
        if found["largest_token"] is None
        else f"{found['largest_token']:,}",
        "end of document": "unknown" if not found["is_ours"] else found["eod_token"] or "none",
        "document length": f"mean {found['mean_length']:,.1f}, median {found['median_length']:,},"
        f" longest {found['longest']:,} tokens",
    }
    if found["is_ours"]:
        empty, skipped = counted(found["empty"], "empty text"), found["skipped"]
        rows["left out"] = f"{empty}, {counted(skipped, 'bad record')}"
    for name, value in rows.items():
        yield f"{name:<17} {printable(value)}"
    if not found["documents"]:
        return
    yield "\ndocuments by length in tokens"
    most = max(count for _, _, count in found["histogram"])
    columns = zip(*found["histogram"], strict=True)
    firsts, lasts, counts = (max(len(f"{number:,}") for number in column) for column in columns)
    for first, last, count in found["histogram"]:
        row = f"  {first:>{firsts},} to {last:>{lasts},}  {count:>{counts},}  "
        yield (row + bar * -(-HISTOGRAM_WIDTH * count // most)).rstrip()
    yield "\nbegins with"
    yield f"  {printable(found['sample'])}"
