"""Settings for averages of the weights."""

from dataclasses import dataclass

from rampcli.config.fields import setting


@dataclass(kw_only=True, slots=True)
class AverageConfig:
    """Averages of the weights, which are saved beside the weights and do not change training."""

    ema: int | None = setting(
        None,
        "Half-life of an exponential moving average of the weights, in fp32: after so many tokens,"
        " what a weight counts in the average has halved. The batch does not matter. `null`: no"
        " average.",
        unit="tokens",
        at_least=1,
        example=50_000_000,
    )
    merge: str | None = setting(
        None,
        "Mean of weights. `from:7.5T`: of the weights after each step from a position on, each by"
        " its step's tokens. The position is in tokens, or is `from:samples:2B` or"
        " `from:steps:10000`. `last:8`: of the weights in the last eight checkpoints;"
        " `checkpoint.keep_last` has to keep as many. `null`: none.",
        example="last:2",
    )
