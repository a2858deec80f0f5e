"""The entry point `rampcli`, and how it reports errors."""

import gc
import io
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Annotated, Any, TextIO, cast

import typer

from rampcli import __version__
from rampcli.cli.cancel import cancel
from rampcli.cli.cbs import cbs
from rampcli.cli.compare import compare
from rampcli.cli.completion import completion, completions_of
from rampcli.cli.data import data
from rampcli.cli.doctor import doctor
from rampcli.cli.explain import explain
from rampcli.cli.light_typer import LightTyper
from rampcli.cli.phases import phases
from rampcli.cli.plan import plan
from rampcli.cli.pretrain import pretrain
from rampcli.cli.propose import propose
from rampcli.cli.ramps import ramps
from rampcli.cli.recipes import recipes
from rampcli.cli.report import report
from rampcli.cli.rl import rl
from rampcli.cli.serve import serve
from rampcli.cli.status import status
from rampcli.cli.sweep import sweep
from rampcli.cli.tune import tune
from rampcli.cli.usage import TyperError, as_usage_error
from rampcli.cli.weights import export, generate, import_
from rampcli.errors import EXIT_CTRL_C, RampcliError, UsageError, as_json, as_rampcli_error, visible
from rampcli.machine.interpreter import remove_working_directory_from_path

app = LightTyper(add_completion=False, pretty_exceptions_enable=False)
llm = LightTyper()
COMMANDS: dict[str, Callable[..., None]] = {
    "pretrain": pretrain,
    "plan": plan,
    "rl": rl,
    "sweep": sweep,
    "tune": tune,
    "propose": propose,
    "explain": explain,
    "recipes": recipes,
    "ramps": ramps,
    "generate": generate,
    "export": export,
    "import": import_,
    "status": status,
    "report": report,
    "compare": compare,
    "cbs": cbs,
    "phases": phases,
    "serve": serve,
    "cancel": cancel,
    "doctor": doctor,
    "completion": completion,
}
"""Functions of the commands by name.

To add a command: a file in `rampcli/cli` whose docstring says what its options do, an entry here,
and a section of `docs/reference/commands.md`.
"""
for name, function in COMMANDS.items():
    app.command(name)(function)
llm.command("pretrain")(pretrain)
app.add_typer(data, name="data", help="Build a corpus from text, or inspect one.")
app.add_typer(llm, name="llm", help="The pretrain command under the name that NeMo uses.")


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
    """Pretrain language models with a planned, exact batch size that can grow."""


def _check_working_directory() -> None:
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise UsageError(
            "the working directory does not exist any more", remedy="cd to another directory"
        ) from error


class VisibleStream:
    """A stream that escapes control characters, because Typer's errors repeat what was typed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes text with its control characters escaped."""
        return self._stream.write(visible(text, keeps="\n\t"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _print_error(error: RampcliError) -> None:
    """Prints an error on standard error, as JSON if the command prints JSON."""
    typer.echo(as_json(error) if "--json" in sys.argv else str(error), err=True)


def main() -> None:
    """Runs a command. A RampcliError becomes one message and an exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot show a character shows ? instead.
        sys.stdout.reconfigure(errors="replace")
    remove_working_directory_from_path()
    # Objects created by imports stay. Scanning them again and again takes 5% of a short command.
    gc.disable()
    if sys.argv[1:2] == ["__complete"]:
        found = completions_of(sys.argv[2:], typer.main.get_command(app))
        typer.echo("\n".join(word for word in found if word.isprintable()))
        return
    try:
        _check_working_directory()
        with redirect_stderr(cast(TextIO, VisibleStream(sys.stderr))):
            code = app(prog_name="rampcli", standalone_mode=False)
    except TyperError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(str(error), err=True)
        else:
            _print_error(as_usage_error(error))
        sys.exit(UsageError.exit_code)
    except RampcliError as error:
        _print_error(error)
        sys.exit(error.exit_code)
    except OSError as error:
        _print_error(as_rampcli_error(error))
        sys.exit(RampcliError.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(EXIT_CTRL_C)
    sys.exit(code)  # None, or the code of a typer.Exit
