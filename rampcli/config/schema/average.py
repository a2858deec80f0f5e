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
