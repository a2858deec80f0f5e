"""Settings for averages of the weights."""

from dataclasses import dataclass

from rampcli.settings.attributes import Section
from rampcli.settings.facts import COST, whole_run
from rampcli.settings.fields import setting


@dataclass(kw_only=True, slots=True)
class AverageConfig(Section):
    """Averages of the weights, which are saved beside the weights and do not change training."""

    ema: int | None = setting(
        None,
        "Half-life of an exponential moving average of the weights: after this many tokens, the"
        " weights of a step count half as much in the average, whatever the batch size. The average"
        " is kept in fp32. `null`: no average.",
        whole_run(COST).unread_by_rl(", whose steps have no fixed number of tokens"),
        unit="tokens",
        at_least=1,
        example=50_000_000,
    )
    merge: str | None = setting(
        None,
        "Mean of the weights. `from:7.5T`: the mean over all steps from a position on. Each step's"
        " weights count by its tokens. The position is in tokens, or is `from:samples:2B` or"
        " `from:steps:10000`. `last:8`: the mean of the last eight checkpoints, so"
        " `checkpoint.keep_last` must be at least 8. `null`: no mean.",
        whole_run(COST),
        example="last:2",
    )
