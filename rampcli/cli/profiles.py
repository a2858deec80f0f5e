"""Prints the profiles of a run."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from rampcli.cli.console import print_table, say
from rampcli.report.profiles import profile_table, profile_title
from rampcli.runs.directory import RunDirectory


def print_profiles(run: RunDirectory, found: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Prints the operators of the first profile of a run, and the files of all of them."""
    if not found:
        return
    say(console, f"\n{profile_title(found[0])}:")
    print_table(console, profile_table(found[0]))
    for row in found:
        for name in row["files"]:
            say(console, f"profile: {run.path / name}")
