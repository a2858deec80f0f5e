"""Prints the profiles of a run."""

from rich.console import Console

from rampcli.cli.console import print_table, say
from rampcli.report.profiles import profile_table, profile_title, profiles
from rampcli.run_directory import RunDirectory
from rampcli.run_rows import read_rows


def print_profiles(run: RunDirectory, console: Console, *, since: float = 0.0) -> None:
    """Prints the operators of the first profile since a time, and the files of all of them."""
    found = profiles(row for row in read_rows(run.events) if row["time"] >= since)
    if not found:
        return
    say(console, f"\n{profile_title(found[0])}:")
    print_table(console, profile_table(found[0]))
    for row in found:
        for name in row["files"]:
            say(console, f"profile: {run.path / name}")
