"""How long a run has run until a moment, and how many device hours that took."""

from collections.abc import Iterable, Mapping
from typing import Any

from rampcli.runs.rows import number
from rampcli.runs.time_spent import RunClock


def time_until(events: Iterable[Mapping[str, Any]], moment: float) -> tuple[float, float | None]:
    """Returns the running seconds of a run until a moment, and the same times its processes.

    All attempts count: starts, validation, checkpoints, restarts and lost work. Time in which the
    run had no processes, as in a queue, does not.

    Args:
        events: rows of events.jsonl, in order.
        moment: in seconds since 1970.

    Returns:
        (seconds, device seconds). The latter are None if the number of processes is unknown.
    """
    clock, launched_at = RunClock(), None
    processes: float | None = 0.0
    before_s, device_s = 0.0, 0.0
    for event in events:
        if event["time"] > moment:
            break
        clock.add(event)
        if event["event"] == "launch":
            launched_at = event["time"]
        if event["event"] == "start":
            # The time from the launch to the start belongs to the new processes.
            starting_s = max(0.0, event["time"] - launched_at) if launched_at else 0.0
            running_s = clock.spent(last_step_at=None).running_s
            starting_s = min(starting_s, running_s - before_s)
            starting = number(event.get("world_size"))
            if processes is None or starting is None:
                processes = None
            else:
                device_s += (running_s - before_s - starting_s) * processes + starting_s * starting
                processes = starting
            before_s = running_s
    running_s = clock.spent(last_step_at=None, now=moment).running_s
    known = None if processes is None else device_s + (running_s - before_s) * processes
    return running_s, known
