"""Settings for averages of the weights."""

from dataclasses import dataclass

from rampcli.config.fields import setting


@dataclass(kw_only=True, slots=True)
class AverageConfig:
    """Averages of the weights, which are saved beside the weights and do not change training."""

    ema: int | None = setting(
        None,
        "Half-life of an exponential moving average of the weights: what a weight counts in the"
        " average halves every so many tokens, whatever the batch. The average is in fp32. `null`:"
        " no average.",
        unit="tokens",
        at_least=1,
        example=50_000_000,
    )
    merge: str | None = setting(
        None,
        "Mean of the weights in several checkpoints, which `rampcli export --average merge`"
        " computes: `last:8` of the last eight. `checkpoint.keep_last` has to keep as many. `null`:"
        " none.",
        example="last:2",
    )
