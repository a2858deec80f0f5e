import io

import pytest
from rich.console import Console

from rampcli.cli.console import PIPE_WIDTH, build_console, say
from rampcli.report.tables import build_table

LONG = "/a path/" + "x" * 300


def test_a_pipe_is_as_wide_as_a_wide_terminal_and_has_no_colours(capsys):
    assert build_console().width == PIPE_WIDTH
    say(build_console(), "[bold]2,048[/bold]")
    assert capsys.readouterr().out == "[bold]2,048[/bold]\n"


def test_a_long_path_is_not_wrapped(capsys):
    say(build_console(), LONG)
    assert capsys.readouterr().out == f"{LONG}\n"


@pytest.mark.parametrize("width", [20, 80])
def test_a_table_that_is_wider_than_the_terminal_is_printed_at_its_full_width(width):
    table = build_table("a column", "another", "and a third")
    table.add_row("1" * 30, "2" * 30, "3" * 30)
    console = Console(file=io.StringIO(), width=width)
    say(console, table)
    printed = console.file.getvalue()
    assert [len(line) for line in printed.splitlines()] == [94, 94]
    assert "1" * 30 + "  " + "2" * 30 + "  " + "3" * 30 in printed


def test_a_quiet_console_prints_neither_texts_nor_tables(capsys):
    say(build_console(quiet=True), LONG, build_table("a column"))
    assert capsys.readouterr().out == ""
