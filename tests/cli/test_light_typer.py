import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
import typer

from rampcli.cli.light_typer import LightTyper

PROBE = """
import sys, typer
from rampcli.cli.light_typer import LightTyper
app = LightTyper()
@app.command()
def first(name: str, words: list[str] | None = None, count: int | None = None): ...
@app.command()
def second(): ...
app(sys.argv[1:], standalone_mode=False)
print("pydantic" in sys.modules)
"""


def outcome(application, words):
    """What a command received, or its error."""
    received = []

    @application.command("go")
    def go(
        name: Annotated[str, typer.Option()],
        words: Annotated[list[str] | None, typer.Argument()] = None,
        folder: Annotated[Path | None, typer.Option(exists=True)] = None,
        count: Annotated[int | None, typer.Option(min=1)] = None,
        size: int = 3,
        tags: Annotated[list[str] | None, typer.Option()] = None,
        paths: Annotated[list[Path] | None, typer.Option()] = None,
        note: Annotated[str | None, typer.Option(callback=lambda note: note and note * 2)] = None,
        mark: Annotated[str, typer.Option(envvar="LIGHT_MARK")] = "m",
        switch: Annotated[bool, typer.Option("--switch")] = False,
    ) -> None:
        received.append((name, words, folder, count, size, tags, paths, note, mark, switch))

    @application.command("other")
    def other() -> None: ...

    try:
        typer.main.get_command(application)(list(words), prog_name="app", standalone_mode=False)
    except Exception as error:
        return type(error), str(error)
    return received


@pytest.mark.parametrize(
    "words",
    [
        ["go"],
        ["go", "--name"],
        ["go", "--name", ""],
        ["go", "--name", "a"],
        ["go", "--name", "a", "w", "", "é"],
        ["go", "--name", "a", "--folder", "/"],
        ["go", "--name", "a", "--folder", "/no/such/folder"],
        ["go", "--name", "a", "--count", "0"],
        ["go", "--name", "a", "--count", "5", "--size", "7"],
        ["go", "--name", "a", "--size", "many"],
        ["go", "--name", "a", "--tags", "x", "--tags", "", "--paths", "p", "--paths", "q"],
        ["go", "--name", "a", "--note", "n", "--mark", "k", "--switch"],
        ["go", "--help"],
        ["stop"],
        [],
    ],
)
@pytest.mark.parametrize("mark", [None, "from the environment"])
def test_a_light_application_passes_the_values_and_errors_of_typer(words, mark, monkeypatch):
    if mark is not None:
        monkeypatch.setenv("LIGHT_MARK", mark)
    plain = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    assert outcome(LightTyper(), words) == outcome(plain, words)


@pytest.mark.parametrize(
    "words", [["first", "a"], ["first", "a", "--words=b", "--words=c"], ["second"]]
)
def test_strings_and_absent_options_are_passed_without_pydantic(words):
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *words], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_the_docstring_of_a_command_has_the_help_texts_of_its_options(capsys):
    application = LightTyper()

    @application.command()
    def go(size: Annotated[int, typer.Option(metavar="N")] = 3, count: int = 1) -> None:
        """Do something.

        It takes a while.

        Args:
            size: A size: the one
                of a sample.
        """

    with pytest.raises(SystemExit):
        application(["--help"])
    about, options = capsys.readouterr().out.split("Options:\n")
    assert about.endswith("\n\n  Do something.\n\n  It takes a while.\n\n")
    first, second, *_ = [" ".join(line.split()) for line in options.splitlines()]
    assert first == "--size N A size: the one of a sample. [default: 3]"
    assert second.startswith("--count ")
