"""What a trace of torch's profiler says: the most expensive operators, and the time of exchange.

torch's own `key_averages` takes about 0.1 ms for each operator of a trace, half a minute for a few
steps of a small model. This takes about 10 us.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STEP_MARK = "step "
"""Prefix of the marks of steps."""
GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of GPU activity that operators start."""
NCCL, GLOO = "nccl", "gloo:"
"""Prefixes of collectives: of kernels on the GPU, and of work on the CPU."""
COMPUTES = "aten::"
"""Prefix of operators that compute. Other operators may wait for other ranks."""

Event = Mapping[str, Any]
Interval = tuple[float, float]
"""Beginning and end in microseconds."""


@dataclass(slots=True)
class Operator:
    """Calls of an operator, and their time without the operators that they call.

    Attributes:
        calls: number of calls, also of an operator by itself.
        device_us: microseconds of the kernels and copies that they start on a GPU.
    """

    calls: int = 0
    cpu_us: float = 0.0
    device_us: float = 0.0


@dataclass(frozen=True, slots=True)
class SelfTime:
    """A time in which an operator ran itself, not an operator that it called."""

    thread: Any
    name: str
    interval: Interval


def read_trace(path: Path) -> tuple[dict[str, Operator], float]:
    """Reads a Chrome trace.

    Args:
        path: JSON file that `torch.profiler.profile.export_chrome_trace` has written.

    Returns:
        The operators by name, and the microseconds of the marked steps in which a collective was in
        progress and nothing was computed. Waiting for slower ranks is part of them.
    """
    events = [each for each in json.loads(path.read_bytes())["traceEvents"] if each["ph"] == "X"]
    on_gpu = [event for event in events if event["cat"] in GPU_CATEGORIES]
    calls: defaultdict[Any, list[Event]] = defaultdict(list)
    operators: defaultdict[str, Operator] = defaultdict(Operator)
    names = {}
    for event in events:
        if event["cat"] == "cpu_op":
            calls[event["tid"]].append(event)
            names[event["args"].get("External id")] = event["name"]
            operators[event["name"]].calls += 1
    self_times = [time for of_thread in calls.values() for time in _self_times(of_thread)]
    for time in self_times:
        operators[time.name].cpu_us += time.interval[1] - time.interval[0]
    for event in on_gpu:
        name = names.get(event["args"].get("External id"))
        if name is not None:
            operators[name].device_us += event["dur"]
    return dict(operators), _exchange_us(events, self_times, on_gpu)


def _exchange_us(
    events: Sequence[Event], self_times: Iterable[SelfTime], on_gpu: Sequence[Event]
) -> float:
    """Returns the time of exchange: of the GPU if it was used, else of the thread that trains."""
    marks = [
        event
        for event in events
        if event["cat"] == "user_annotation" and event["name"].startswith(STEP_MARK)
    ]
    if on_gpu:
        prefix = NCCL
        computing = [_interval(event) for event in on_gpu if not event["name"].startswith(NCCL)]
    else:
        prefix, threads = GLOO, {mark["tid"] for mark in marks}
        computing = [
            time.interval
            for time in self_times
            if time.thread in threads and time.name.startswith(COMPUTES)
        ]
    collectives = [_interval(event) for event in events if event["name"].startswith(prefix)]
    steps = list(map(_interval, marks))
    # Two sets overlap by the sum of their lengths minus the length of their union. All three are
    # taken without the time of computing.
    return (
        _length_of_union([*collectives, *computing])
        + _length_of_union([*steps, *computing])
        - _length_of_union([*collectives, *steps, *computing])
        - _length_of_union(computing)
    )


def _self_times(calls: Iterable[Event]) -> Iterator[SelfTime]:
    """Yields the times in which the operators of one thread ran themselves."""
    open_calls: list[Event] = []  # the calls around the next one
    at = -math.inf  # time up to which the thread is known

    def run_innermost(end: float) -> Iterator[SelfTime]:
        nonlocal at
        if open_calls and at < end:
            yield SelfTime(open_calls[-1]["tid"], open_calls[-1]["name"], (at, end))
        at = max(at, end)

    for call in [*sorted(calls, key=lambda call: (call["ts"], -call["dur"])), {"ts": math.inf}]:
        while open_calls and (end := _interval(open_calls[-1])[1]) <= call["ts"]:
            yield from run_innermost(end)
            open_calls.pop()
        yield from run_innermost(call["ts"])
        open_calls.append(call)


def _interval(event: Event) -> Interval:
    return event["ts"], event["ts"] + event["dur"]


def _length_of_union(intervals: Iterable[Interval]) -> float:
    """Returns the time that lies in at least one of the intervals."""
    length, known = 0.0, -math.inf
    for begin, end in sorted(intervals):
        length += max(0.0, end - max(begin, known))
        known = max(known, end)
    return length
