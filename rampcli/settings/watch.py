"""Settings for watching a run."""

from dataclasses import dataclass
from typing import ClassVar

from rampcli.plugins.trackers import TRACKERS
from rampcli.settings.attributes import Section
from rampcli.settings.facts import NOTHING, any_phase, whole_run
from rampcli.settings.fields import Extensible, setting

LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 1e-4, 1e4
"""Dividing logits by a lower temperature overflows; a higher one makes all logits equal."""


@dataclass(kw_only=True, slots=True)
class LoggingConfig(Extensible):
    """Where metrics are shown besides the run directory."""

    of_extensions: ClassVar = whole_run(NOTHING)
    trackers: list[str] = setting(
        [],
        f"Trackers that show the metrics: {' or '.join(f'`{name}`' for name in TRACKERS)}, or"
        f" several, `[{','.join(TRACKERS)}]`. They never delay training.",
        whole_run(NOTHING),
        extensible=True,
        example=list(TRACKERS),
    )


@dataclass(kw_only=True, slots=True)
class GenerateConfig(Section):
    """Texts that the model continues while it trains, as `rampcli generate` does."""

    prompts: list[str] = setting(
        [], "Beginnings of texts to continue.", whole_run(NOTHING), example=["ROMEO", "JULIET"]
    )
    every_steps: int | None = setting(
        None,
        "Interval between continuations. `null`: only after the last step.",
        whole_run(NOTHING),
        unit="optimiser steps",
        at_least=1,
    )
    max_tokens: int = setting(
        64, "Most tokens to add to each prompt.", whole_run(NOTHING), unit="tokens", at_least=1
    )
    temperature: float = setting(
        0.8,
        "Sampling temperature. `0` always takes the likeliest token.",
        whole_run(NOTHING),
        at_least=0,
        at_most=HIGHEST_TEMPERATURE,
    )


@dataclass(kw_only=True, slots=True)
class NoiseScaleConfig(Section):
    """The noise scale of the gradient, which says how large a batch still pays."""

    every_steps: int | None = setting(
        None,
        "Interval between steps that measure the noise scale of the gradient. `null`: never.",
        any_phase(NOTHING).unread_by_rl(": it measures gradients of pretraining"),
        unit="optimiser steps",
        at_least=1,
        example=16,
    )


@dataclass(kw_only=True, slots=True)
class ProfileConfig(Section):
    """Profiles of some steps by torch's profiler."""

    steps: list[int] | None = setting(
        None,
        "First and last step to profile, `[10,12]`. `null`: no profile.",
        whole_run(NOTHING),
        unit="optimiser steps",
        example=[10, 12],
    )
    ranks: list[int] = setting([0], "Ranks to profile.", whole_run(NOTHING), unit="ranks")
