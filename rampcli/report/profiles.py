"""The profiles of a run (`profile.steps`)."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from rampcli.errors import visible
from rampcli.report.tables import build_table


def profile_parts(folder: Path, profiles: Sequence[Mapping[str, Any]]) -> Iterator[str | Table]:
    """Yields the operators of the first profile of a run, and the files of all of them.

    Args:
        folder: the run directory.
        profiles: events `profile`; there may be none.
    """
    for row in profiles[:1]:
        yield f"\n{profile_title(row)}:"
        yield profile_table(row)
    for row in profiles:
        yield from (f"profile: {folder / name}" for name in row["files"])


def profile_title(row: Mapping[str, Any]) -> str:
    """Returns the title of the table of a profile."""
    first, last = row["steps"]
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    return f"most expensive operators of {steps} on rank {row['rank']}"


def profile_table(row: Mapping[str, Any]) -> Table:
    """Returns the most expensive operators of a profile, without the time of those they call."""
    on_gpu = any("self_device_s" in operator for operator in row["operators"])
    columns = ("operator", "calls", "CPU time", *(("GPU time",) if on_gpu else ()))
    table = build_table(*columns, left=("operator",))
    for operator in row["operators"]:
        times = ("self_cpu_s", "self_device_s") if on_gpu else ("self_cpu_s",)
        table.add_row(
            Text(visible(operator["name"])),
            f"{operator['calls']:,}",
            *(f"{operator.get(name, 0) * 1e3:,.1f} ms" for name in times),
        )
    return table
