"""What a trace of torch's profiler says: the most expensive operators, and the time of exchange.

torch's own `key_averages` takes about 0.1 ms for each operator of a trace, half a minute for a few
steps of a small model. This takes about 10 us.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

STEP = "step "
"""Prefix of the marks of steps."""
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """Operators of a trace, and its time of exchange.

    Attributes:
        exchange_us: microseconds of the marked steps in which a collective was in progress and
            nothing was computed. Waiting for slower ranks is part of it.
    """

    operators: dict[str, Operator]
    exchange_us: float


@dataclass(frozen=True, slots=True)
class SelfTime:
    """A time in which an operator ran itself, not an operator that it called."""

    thread: Any
    name: str
    interval: Interval


def read_trace(path: Path) -> Trace:
    """Reads a Chrome trace.

    Args:
        path: JSON file that `torch.profiler.profile.export_chrome_trace` has written.
    """
    events = [each for each in json.loads(path.read_bytes())["traceEvents"] if each["ph"] == "X"]
    calls: defaultdict[Any, list[Event]] = defaultdict(list)
    for event in events:
        if event["cat"] == "cpu_op":
            calls[event["tid"]].append(event)
    self_times = [time for of_thread in calls.values() for time in _self_times(of_thread)]
    on_gpu = [event for event in events if event["cat"] in ON_GPU]
    return Trace(
        operators=_operators(chain.from_iterable(calls.values()), self_times, on_gpu),
        exchange_us=_exchange_us(events, self_times, on_gpu),
    )


def _operators(
    calls: Iterable[Event], self_times: Iterable[SelfTime], on_gpu: Iterable[Event]
) -> dict[str, Operator]:
    """Returns the operators by name."""
    operators: defaultdict[str, Operator] = defaultdict(Operator)
    names = {}
    for call in calls:
        names[call["args"].get("External id")] = call["name"]
        operators[call["name"]].calls += 1
    for time in self_times:
        operators[time.name].cpu_us += time.interval[1] - time.interval[0]
    for event in on_gpu:
        name = names.get(event["args"].get("External id"))
        if name is not None:
            operators[name].device_us += event["dur"]
    return dict(operators)


def _exchange_us(
    events: Sequence[Event], self_times: Iterable[SelfTime], on_gpu: Sequence[Event]
) -> float:
    """Returns `Trace.exchange_us`: of the GPU if it was used, else of the thread that trains."""
    marks = [
        event
        for event in events
        if event["cat"] == "user_annotation" and event["name"].startswith(STEP)
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
    after_all = {"ts": math.inf}
    for call in [*sorted(calls, key=lambda call: (call["ts"], -call["dur"])), after_all]:
        while open_calls and _interval(open_calls[-1])[1] <= call["ts"]:
            yield from _time_of(ended := open_calls.pop(), at, _interval(ended)[1])
            at = max(at, _interval(ended)[1])
        if open_calls:
            yield from _time_of(open_calls[-1], at, call["ts"])
        at = max(at, call["ts"])
        open_calls.append(call)


def _time_of(call: Event, begin: float, end: float) -> Iterator[SelfTime]:
    if begin < end:
        yield SelfTime(call["tid"], call["name"], (begin, end))


def _interval(event: Event) -> Interval:
    return event["ts"], event["ts"] + event["dur"]


def _length_of_union(intervals: Iterable[Interval]) -> float:
    """Returns the time that lies in at least one of the intervals."""
    length, known = 0.0, -math.inf
    for begin, end in sorted(intervals):
        if end > known:
            length += end - max(begin, known)
            known = end
    return length
