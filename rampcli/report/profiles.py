"""The profiles of a run (`profile.steps`)."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from rampcli.errors import visible
from rampcli.report.tables import build_table
from rampcli.run_directory import RunDirectory
from rampcli.run_rows import read_rows


def profiles(run: RunDirectory, *, since: float = 0.0) -> list[dict[str, Any]]:
    """Returns the events `profile`, the last one of each rank and window.

    Args:
        run: the run directory.
        since: leave out events before this time, in seconds since 1970.
    """
    found = {
        (*row["steps"], row["rank"]): row
        for row in read_rows(run.events)
        if row["event"] == "profile" and row["time"] >= since
    }
    return list(found.values())


def profile_title(row: Mapping[str, Any]) -> str:
    """Returns what a profile shows."""
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
