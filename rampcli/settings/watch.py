"""Settings for watching a run."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from rampcli.batch.noise_scale import NOISE_KEY
from rampcli.batch.pipeline import PIPELINE_SIZE_KEY
from rampcli.batch.step_schedule import LENGTH_KEY
from rampcli.errors import UsageError, set_to, shown
from rampcli.files.records import is_unicode
from rampcli.plugins.trackers import TRACKERS
from rampcli.settings.attributes import Section
from rampcli.settings.by_key import settings
from rampcli.settings.data import DataConfig
from rampcli.settings.facts import NOTHING, SPEED, any_phase, whole_run
from rampcli.settings.fields import Extensible, Keyed, keyed, setting, settings_class
from rampcli.settings.model import ModelConfig
from rampcli.settings.trainer import TrainerConfig

if TYPE_CHECKING:
    from rampcli.settings.config import Config

MOST_PROFILED_STEPS = 20
MOST_PROMPTS = 10
"""Prompts whose texts fit into one row of events.jsonl."""

LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 1e-4, 1e4
"""Dividing logits by a lower temperature overflows; a higher one makes all logits equal."""


@keyed("logging.")
@settings_class(kw_only=True)
class LoggingConfig(Extensible):
    """Observers that measure more, and where metrics are shown besides the run directory."""

    of_extensions: ClassVar = whole_run(NOTHING)
    trackers: Keyed[list[str]] = setting(
        [],
        f"Trackers that show the metrics: {' or '.join(f'`{name}`' for name in TRACKERS)}, or"
        f" several, `[{','.join(TRACKERS)}]`. They never delay training.",
        whole_run(NOTHING),
        extensible=True,
        example=list(TRACKERS),
    )
    observers: Keyed[list[str]] = setting(
        [],
        "Observers of yours that measure the model in each step, such as the norm of each layer.",
        whole_run(SPEED),
        extensible=True,
        example=["layer_norms"],
    )


@keyed("generate.")
@settings_class(kw_only=True)
class GenerateConfig(Section):
    """Texts that the model continues while it trains, as `rampcli generate` does."""

    prompts: Keyed[list[str]] = setting(
        [], "Beginnings of texts to continue.", whole_run(NOTHING), example=["ROMEO", "JULIET"]
    )
    every_steps: Keyed[int | None] = setting(
        None,
        "Interval between continuations. `null`: only after the last step.",
        whole_run(NOTHING),
        unit="optimiser steps",
        at_least=1,
    )
    max_tokens: Keyed[int] = setting(
        64, "Most tokens to add to each prompt.", whole_run(NOTHING), unit="tokens", at_least=1
    )
    temperature: Keyed[float] = setting(
        0.8,
        "Sampling temperature. `0` always takes the likeliest token.",
        whole_run(NOTHING),
        at_least=0,
        at_most=HIGHEST_TEMPERATURE,
    )


@keyed("noise_scale.")
@settings_class(kw_only=True)
class NoiseScaleConfig(Section):
    """The noise scale of the gradient, which says how large a batch still pays."""

    every_steps: Keyed[int | None] = setting(
        None,
        "Interval between steps that measure the noise scale of the gradient. `null`: never.",
        any_phase(NOTHING).unread_by_rl(": it measures gradients of pretraining"),
        unit="optimiser steps",
        at_least=1,
        example=16,
    )


@keyed("profile.")
@settings_class(kw_only=True)
class ProfileConfig(Section):
    """Profiles of some steps by torch's profiler."""

    steps: Keyed[list[int] | None] = setting(
        None,
        "First and last step to profile, `[10,12]`. `null`: no profile.",
        whole_run(NOTHING),
        unit="optimiser steps",
        example=[10, 12],
    )
    ranks: Keyed[list[int]] = setting([0], "Ranks to profile.", whole_run(NOTHING), unit="ranks")


def check_logging(config: "Config") -> Iterator[UsageError]:
    """Checks that each tracker and observer is named once. `extension_settings` finds them."""
    for key, names, kind in (
        (LoggingConfig.trackers, config.logging.trackers, "a tracker"),
        (LoggingConfig.observers, config.logging.observers, "an observer"),
    ):
        if len({*names}) < len(names):
            yield UsageError(
                f"{key}={shown(names)} names {kind} twice",
                keys=(key,),
                remedy=set_to(key, list(dict.fromkeys(names))),
            )


def check_generate(config: "Config") -> Iterator[UsageError]:
    """Checks that there are prompts to continue, and room for tokens behind them."""
    generate, length = config.generate, config.data.sequence_length
    if not generate.prompts:
        if generate.every_steps is not None:
            yield UsageError(
                f"generate.every_steps={generate.every_steps} has no text to continue:"
                f" {GenerateConfig.prompts} is empty",
                keys=(GenerateConfig.every_steps, GenerateConfig.prompts),
                remedy=settings()[GenerateConfig.prompts].example(),
            )
    elif len(generate.prompts) > MOST_PROMPTS:
        yield UsageError(
            f"{GenerateConfig.prompts} has {len(generate.prompts)} texts",
            keys=(GenerateConfig.prompts,),
            remedy=f"up to {MOST_PROMPTS} texts",
        )
    elif "" in generate.prompts or not all(map(is_unicode, generate.prompts)):
        yield UsageError(
            f"{GenerateConfig.prompts}={shown(generate.prompts)} has a text that is empty or not"
            " UTF-8",
            keys=(GenerateConfig.prompts,),
            remedy=settings()[GenerateConfig.prompts].example(),
        )
    elif config.data.source == "mock":
        yield UsageError(
            f"{GenerateConfig.prompts} does not apply to data.source=mock, whose tokens are no"
            " text",
            keys=(GenerateConfig.prompts, DataConfig.source),
            remedy="data=stdlib, or data=text data.path=PATH",
        )
    elif generate.max_tokens >= length:
        yield UsageError(
            f"{GenerateConfig.max_tokens}={generate.max_tokens} leaves no room for a prompt in"
            f" {LENGTH_KEY}={length}",
            keys=(GenerateConfig.max_tokens, LENGTH_KEY),
            remedy=set_to(GenerateConfig.max_tokens, length // 2)
            if length > 1
            else "longer samples",
        )
    elif 0 < generate.temperature < LOWEST_TEMPERATURE:
        yield UsageError(
            f"generate.temperature={generate.temperature:g} is neither 0 nor from"
            f" {LOWEST_TEMPERATURE} to {HIGHEST_TEMPERATURE:g}",
            keys=(GenerateConfig.temperature,),
            remedy=set_to(GenerateConfig.temperature, 0),
        )


def check_profile(config: "Config") -> Iterator[UsageError]:
    """Checks that there are steps and ranks to profile."""
    steps, ranks, trainer = config.profile.steps, config.profile.ranks, config.trainer
    world_size = trainer.num_nodes * trainer.devices - config.rl.rollout_ranks
    if steps is None:
        return
    if len(steps) != 2 or not 1 <= steps[0] <= steps[1]:
        yield UsageError(
            f"{ProfileConfig.steps}={shown(steps)} is not a first and a last step, from 1 on",
            keys=(ProfileConfig.steps,),
            remedy=set_to(ProfileConfig.steps, [10, 12]),
        )
    elif steps[1] - steps[0] >= MOST_PROFILED_STEPS:
        yield UsageError(
            f"{ProfileConfig.steps}={shown(steps)} has {steps[1] - steps[0] + 1:,} steps, whose"
            " trace would"
            " fill the memory",
            keys=(ProfileConfig.steps,),
            remedy=set_to(
                ProfileConfig.steps,
                [steps[0], steps[0] + 2],
                note=f" (up to {MOST_PROFILED_STEPS} steps)",
            ),
        )
    elif not ranks or min(ranks) < 0 or max(ranks) >= world_size or len({*ranks}) < len(ranks):
        yield UsageError(
            f"{ProfileConfig.ranks}={shown(ranks)} are not different ranks from 0 to"
            f" {world_size - 1}",
            keys=(ProfileConfig.ranks, TrainerConfig.num_nodes, TrainerConfig.devices),
            remedy=set_to(ProfileConfig.ranks, [0]),
        )


def check_noise_scale(config: "Config") -> Iterator[UsageError]:
    """Checks that a pipeline has each gradient of a micro batch on one rank."""
    every_steps, ranks = config.noise_scale.every_steps, config.parallel.pipeline_parallel_size
    if every_steps is not None and ranks > 1 and config.model.tie_embeddings:
        yield UsageError(
            f"{NOISE_KEY}={every_steps} does not apply to model.tie_embeddings=true on"
            f" {PIPELINE_SIZE_KEY}={ranks}: the first and the last rank of"
            " the pipeline each have a part of the tied weight's gradient",
            keys=(NOISE_KEY, ModelConfig.tie_embeddings, PIPELINE_SIZE_KEY),
            remedy=set_to(NOISE_KEY, None),
        )
