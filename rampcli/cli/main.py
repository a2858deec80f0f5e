"""`rampcli`: the entry point, and how errors leave it."""

import gc
import io
import sys
from contextlib import redirect_stderr
from pathlib import Path
from typing import Annotated, Any, TextIO, cast

import typer

from rampcli import __version__
from rampcli.cli.commands import (
    cancel,
    completion,
    doctor,
    explain,
    export,
    generate,
    import_,
    plan,
    pretrain,
    recipes,
    status,
)
from rampcli.cli.completion import candidates
from rampcli.cli.data_commands import data
from rampcli.errors import EXIT_CTRL_C, RampcliError, UsageError, visible
from rampcli.interpreter import leave_working_directory_out

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
llm = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
for commands in (app, llm):
    commands.command("pretrain", context_settings={"allow_interspersed_args": True})(pretrain)
app.command("plan")(plan)
app.command("explain")(explain)
app.command("recipes")(recipes)
app.command("generate")(generate)
app.command("export")(export)
app.command("import")(import_)
app.command("status")(status)
app.command("cancel")(cancel)
app.command("doctor")(doctor)
app.command("completion")(completion)
app.add_typer(data, name="data", help="Build a corpus from text, and look into one.")
app.add_typer(llm, name="llm", help="The same commands, as NeMo's command lines name them.")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
    ),
]


@app.callback()
def about(version: Version = False) -> None:
    """Pretrain language models with a batch size that is planned, exact and grows."""


def check_working_directory() -> None:
    """Raises a UsageError where the folder that the shell stands in was deleted."""
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise UsageError(
            "the working directory does not exist any more", remedy="cd to another one"
        ) from error


class VisibleStream:
    """A stream on which no control character arrives: Typer repeats words that it does not know as they were typed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text as `visible` has it."""
        return self._stream.write(visible(text, keeps="\n\t"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def main() -> None:
    """Run a command; an error of `rampcli.errors` is one message and its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without a character shows ? for it
    leave_working_directory_out()
    gc.disable()  # importing fills the heap with what stays: looking through it again and again takes a twentieth of a short command
    if sys.argv[1:2] == ["__complete"]:
        found = candidates(sys.argv[2:], typer.main.get_command(app))
        typer.echo("\n".join(word for word in found if word.isprintable()))
        return
    try:
        check_working_directory()
        with redirect_stderr(cast(TextIO, VisibleStream(sys.stderr))):
            app()
    except RampcliError as error:
        typer.echo(str(error), err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        typer.echo(f"error: {visible(str(error))}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(EXIT_CTRL_C)


if __name__ == "__main__":
    main()
