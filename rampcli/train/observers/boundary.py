"""What a boundary between two sets of processes costs."""

from dataclasses import dataclass
from typing import Any

from rampcli.run_directory import STAGE_BOUNDARY, RunDirectory, read_rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrival:
    """When this process got where, in seconds since 1970.

    Attributes:
        started: it ran its first line.
        imported: it had its modules.
        loaded: it had joined the others, and built and loaded what it trains.
    """

    started: float
    imported: float
    loaded: float


def boundary_costs(
    run: RunDirectory, *, step: int, arrival: Arrival, first_step_at: float
) -> dict[str, float | None] | None:
    """Seconds from the last step before a boundary to the end of the first one after it, and what they were spent on.

    Args:
        run: whose events tell of the processes before.
        step: optimiser steps at the boundary.
        arrival: of the processes after it.
        first_step_at: when their first step was done, in seconds since 1970.

    Returns:
        `lost_s`, and its parts, of which those are None that nobody noted: workers that are started by hand have no supervisor.
        None where the processes before did not end at a boundary.
    """
    stop: dict[str, Any] | None = None
    exited_at = launched_at = None
    for row in read_rows(run.events):
        if row["event"] == "stop":
            stop, exited_at, launched_at = row, None, None
        elif row["event"] == "exit" and exited_at is None:
            exited_at = row["time"]
        elif row["event"] == "launch":
            launched_at = row["time"]
    if stop is None or stop["status"] != STAGE_BOUNDARY or stop["step"] != step:
        return None
    moments = {
        "save_s": stop["time"],
        "exit_s": exited_at,
        "wait_s": launched_at,
        "start_s": arrival.started,
        "import_s": arrival.imported,
        "load_s": arrival.loaded,
        "first_step_s": first_step_at,
    }
    began = before = stop["time"] - stop["save_s"]
    parts: dict[str, float | None] = {}
    for name, moment in moments.items():
        parts[name] = (
            None if moment is None or before is None else max(0.0, round(moment - before, 3))
        )
        before = moment
    return {"lost_s": round(first_step_at - began, 3), **parts}
