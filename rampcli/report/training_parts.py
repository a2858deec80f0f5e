"""Divides the time of training: computing, exchange between ranks, waiting, and between steps."""

from collections.abc import Iterable, Mapping
from statistics import mean
from typing import Any

from rampcli.records import read_json
from rampcli.report.profiles import profiles
from rampcli.runs.directory import RunDirectory

COMPUTING, COMPUTING_AND_EXCHANGE, EXCHANGE, DATA, RESPONSES, BETWEEN = (
    "computing",
    "computing and exchange",
    "exchange",
    "waiting for data",
    "waiting for responses",
    "between steps",
)
"""The parts of training."""
DIAGNOSIS = {"exchange_share?": (float, None)}
"""Shape of diagnosis.json, as far as reports rely on it."""


def training_parts(
    training_s: float, *, in_steps_s: float, waiting_s: float, exchange: float | None, is_rl: bool
) -> dict[str, float]:
    """Returns the parts of training in seconds. They add up to `training_s`.

    Args:
        training_s: seconds of training.
        in_steps_s: seconds that its steps have recorded.
        waiting_s: seconds of these in which they waited for data.
        exchange: share of a step that exchange takes, from `exchange_share`.
        is_rl: whether the steps waited for responses, as in reinforcement learning.
    """
    # Events use the clock of the system, which may run otherwise than the one that times steps.
    in_steps_s = min(training_s, in_steps_s)
    waiting_s = min(in_steps_s, waiting_s)
    exchange_s = (in_steps_s - waiting_s) * (exchange or 0.0)
    computing = COMPUTING_AND_EXCHANGE if exchange is None else COMPUTING
    return {
        computing: in_steps_s - waiting_s - exchange_s,
        EXCHANGE: exchange_s,
        RESPONSES if is_rl else DATA: waiting_s,
        BETWEEN: training_s - in_steps_s,
    }


def exchange_share(
    run: RunDirectory, events: Iterable[Mapping[str, Any]], *, is_parallel: bool, is_rl: bool
) -> float | None:
    """Returns the share of a step that exchange between ranks takes, without the wait for data.

    The profiled steps of the run tell it, otherwise `rampcli tune --diagnose`. Returns None if
    neither has measured it. In reinforcement learning it is None, because ranks also exchange data
    while they generate.

    Args:
        run: the run directory.
        events: rows of its events.jsonl, or those that are profiles.
        is_parallel: whether several processes have trained the run.
        is_rl: whether it is reinforcement learning.

    Raises:
        DamagedFileError: the file of the diagnosis is damaged.
    """
    if not is_parallel:
        return 0.0
    if is_rl:
        return None
    measured = [row.get("exchange_share") for row in profiles(events)]
    shares = [share for share in measured if share is not None]
    share = mean(shares) if shares else _diagnosed(run)
    return None if share is None else min(1.0, max(0.0, share))


def _diagnosed(run: RunDirectory) -> float | None:
    """Returns the share that `rampcli tune --diagnose` measured, or None if it did not."""
    try:
        facts = read_json(run.path / "tune/diagnose/diagnosis.json", DIAGNOSIS)
    except FileNotFoundError:
        return None
    share: float | None = facts.get("exchange_share")
    return share
