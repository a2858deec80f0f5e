"""Where the time of a run went, with training divided further: computing, exchange, waiting."""

from contextlib import suppress
from statistics import mean

from rampcli.files.records import read_json
from rampcli.runs.directory import RunDirectory
from rampcli.runs.facts import RunFacts
from rampcli.runs.stages import Spans
from rampcli.runs.time_spent import TRAINING, TimeSpent

COMPUTING, COMPUTING_AND_EXCHANGE, EXCHANGE = "computing", "computing and exchange", "exchange"
DATA, RESPONSES, BETWEEN = "waiting for data", "waiting for responses", "between steps"
"""The parts of training."""
DIAGNOSIS = {"exchange_share?": (float, None)}
"""Shape of diagnosis.json, as far as reports rely on it."""


def time_parts(
    spent: TimeSpent, facts: RunFacts, spans: Spans, directory: RunDirectory, *, unit: str
) -> dict[str, float]:
    """Returns the parts of the time of a run in seconds, without those that took no time.

    They add up to the time of `spent`.

    Args:
        spent: where the time went, with training as one part.
        facts: the run, with all of its events.
        unit: what the run counts. With prompts, steps wait for responses instead of data.

    Raises:
        DamagedFileError: the file of a diagnosis is damaged.
    """
    is_rl, is_parallel = unit == "prompts", bool((spans.world_size > 1).any())
    others = {**spent.parts}
    training_s = others.pop(TRAINING)
    # Events use the clock of the system, and steps a monotonic one, so they may disagree.
    in_steps_s = min(training_s, spans.sum_of("step_time_s"))
    waiting_s = min(in_steps_s, spans.sum_of("data_time_s"))
    exchange = 0.0 if not is_parallel else None if is_rl else _exchange_share(facts, directory)
    exchange_s = (in_steps_s - waiting_s) * (exchange or 0.0)
    parts = {
        COMPUTING if exchange is not None else COMPUTING_AND_EXCHANGE: (
            in_steps_s - waiting_s - exchange_s
        ),
        EXCHANGE: exchange_s,
        RESPONSES if is_rl else DATA: waiting_s,
        BETWEEN: training_s - in_steps_s,
        **others,
    }
    return {name: seconds for name, seconds in parts.items() if seconds > 0}


def _exchange_share(facts: RunFacts, directory: RunDirectory) -> float | None:
    """Returns the share of a step that exchange between ranks takes, without the wait for data.

    The profiled steps of the run tell it, otherwise `rampcli tune --diagnose`. Returns None if
    neither has measured it. In reinforcement learning it is unknown, because ranks also exchange
    data while they generate.
    """
    measured = [row.get("exchange_share") for row in facts.events.profiles.values()]
    if all(share is None for share in measured):
        with suppress(FileNotFoundError):
            path = directory.path / "tune/diagnose/diagnosis.json"
            measured = [read_json(path, DIAGNOSIS).get("exchange_share")]
    shares = [share for share in measured if share is not None]
    return min(1.0, max(0.0, mean(shares))) if shares else None
