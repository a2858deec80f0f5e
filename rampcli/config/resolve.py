"""The one place where settings are checked against each other: the command line and Python both come through `resolve`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rampcli.batch.nodes import Fleet
from rampcli.batch.plan import ParallelSizes
from rampcli.batch.spellings import SPELLINGS, Given, fold_spellings
from rampcli.batch.training_plan import LENGTH_KEYS, RunLength, TrainingPlan, plan_training
from rampcli.config.leaves import build, leaves
from rampcli.config.origin import DEFAULT, Layer, Origin
from rampcli.config.schema import Config, PositionEmbedding
from rampcli.errors import RampcliError, UsageError

AT_LEAST: dict[str, float] = {
    "seed": 0,
    "data.sequence_length": 1,
    "model.num_layers": 1,
    "model.hidden_size": 1,
    "model.ffn_hidden_size": 1,
    "model.num_attention_heads": 1,
    "model.num_query_groups": 1,
    "model.vocab_size": 1,
    "parallel.tensor_parallel_size": 1,
    "parallel.pipeline_parallel_size": 1,
    "parallel.context_parallel_size": 1,
    "trainer.val_every_steps": 1,
    "trainer.val_samples": 0,
    "optim.lr": 0,
    "optim.min_lr": 0,
    "optim.warmup_samples": 0,
    "optim.warmup_steps": 0,
    "optim.weight_decay": 0,
    "checkpoint.every_steps": 1,
    "checkpoint.keep_last": 1,
}
AT_MOST: dict[str, float] = {"seed": 2**62}
ONE_OF = (LENGTH_KEYS, ("optim.warmup_samples", "optim.warmup_steps"))
ABOVE_ZERO = ("trainer.gradient_clip_val", "trainer.peak_tflops", "model.init_std", "model.norm_epsilon", "model.rotary_base", "optim.eps")


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """A configuration in canonical keys, and the plan that follows from it. Nothing writes into either from here on."""

    config: Config
    plan: TrainingPlan

    @property
    def run_dir(self) -> Path:
        """Where the run lives, relative to the working directory unless it was given absolute."""
        return Path(self.config.run_dir or f"runs/{self.config.name}")


def resolve(config: Config) -> Resolved:
    """Check a configuration and plan its run. `config` itself is left as it is.

    Raises:
        UsageError: with the keys that it is about and where their values came from.
    """
    origin: Origin = getattr(config, "origin", None) or _by_hand()
    given = dict(leaves(config))
    with sources_named(config):
        values = _canonical(given, origin)
        typed = build(values, place=lambda key: origin.place(key, values[key]))
        typed.origin = origin
        _check_settings(typed)
        return Resolved(config=typed, plan=_plan(typed))


@contextmanager
def sources_named(config: Config) -> Iterator[None]:
    """Let an error about settings say where the values of `config` came from."""
    try:
        yield
    except RampcliError as error:
        origin: Origin = getattr(config, "origin", None) or _by_hand()
        error.set_by = error.set_by or _places(error.keys, dict(leaves(config)), origin)
        raise


def _by_hand() -> Origin:
    """The origin of a `Config` that nobody composed: what differs from the defaults was set in Python."""
    composed = dict(leaves(Config()))
    return Origin(composed=composed, sources=dict.fromkeys(composed, DEFAULT))


def _canonical(given: dict[str, Any], origin: Origin) -> dict[str, Any]:
    layered = {key: Given(value=value, layer=origin.layer(key, value)) for key, value in given.items()}
    values = dict(given)
    for canonical, winner in fold_spellings(layered).items():
        values[canonical] = given[winner]
    for spelling in SPELLINGS:
        values[spelling] = None
    # A recipe chooses one of several keys that say the same in different units; a user who chooses another replaces it.
    for keys in ONE_OF:
        chosen = [key for key in keys if given[key] is not None]
        nearest = max((layered[key].layer for key in chosen), default=Layer.SCHEMA)
        for key in chosen:
            if layered[key].layer < nearest:
                values[key] = None
    return values


def _plan(config: Config) -> TrainingPlan:
    return plan_training(
        rampup_batch_size=config.model.rampup_batch_size,
        global_batch_size=config.model.global_batch_size,
        micro_batch_size=config.data.micro_batch_size,
        accumulate_grad_batches=config.trainer.accumulate_grad_batches,
        fleet=Fleet(
            num_nodes=config.trainer.num_nodes,
            devices=config.trainer.devices,
            parallel=ParallelSizes(
                tensor=config.parallel.tensor_parallel_size,
                pipeline=config.parallel.pipeline_parallel_size,
                context=config.parallel.context_parallel_size,
            ),
        ),
        node_policy=config.rampup.node_policy,
        sequence_length=config.data.sequence_length,
        length=RunLength(max_steps=config.trainer.max_steps, max_samples=config.trainer.max_samples, max_tokens=config.trainer.max_tokens),
    )


def _check_settings(config: Config) -> None:
    values = dict(leaves(config))
    for key, least in AT_LEAST.items():
        if values[key] is not None and values[key] < least:
            raise UsageError(f"{key}={values[key]} is below {least}", keys=(key,), remedy=f"{key}={least} or more")
    for key, most in AT_MOST.items():
        if values[key] > most:
            raise UsageError(f"{key}={values[key]} is above {most}", keys=(key,), remedy=f"{key}={most} or less")
    for key in ABOVE_ZERO:
        if values[key] is not None and values[key] <= 0:
            raise UsageError(f"{key}={values[key]} is not above zero", keys=(key,), remedy="a positive number")
    for check in (_check_name, _check_heads, _check_warmup):
        check(config)


def _check_name(config: Config) -> None:
    name = config.name
    if not name or name in (".", "..") or "/" in name or not name.isprintable():
        raise UsageError(f"name={name!r} cannot name a folder", keys=("name",), remedy="letters, digits, - and _")


def _check_heads(config: Config) -> None:
    model = config.model
    groups = model.num_query_groups or model.num_attention_heads
    if model.hidden_size % model.num_attention_heads:
        raise UsageError(
            f"model.hidden_size={model.hidden_size} does not divide into model.num_attention_heads={model.num_attention_heads}",
            keys=("model.hidden_size", "model.num_attention_heads"),
            remedy=f"model.num_attention_heads={_largest_divisor(model.hidden_size, model.num_attention_heads)}",
        )
    if model.num_attention_heads % groups:
        raise UsageError(
            f"model.num_attention_heads={model.num_attention_heads} does not divide into model.num_query_groups={groups}",
            keys=("model.num_attention_heads", "model.num_query_groups"),
            remedy=f"model.num_query_groups={_largest_divisor(model.num_attention_heads, groups)}",
        )
    head_size = model.hidden_size // model.num_attention_heads
    if model.position_embedding is PositionEmbedding.rope and head_size % 2:
        raise UsageError(
            f"model.hidden_size={model.hidden_size} over model.num_attention_heads={model.num_attention_heads} gives heads of {head_size};"
            " rotary positions need an even size",
            keys=("model.hidden_size", "model.num_attention_heads"),
            remedy="model.position_embedding=learned, or an even head size",
        )


def _check_warmup(config: Config) -> None:
    if config.optim.warmup_samples is not None and config.optim.warmup_steps is not None:
        raise UsageError(
            "the warm-up is given twice:"
            f" optim.warmup_samples={config.optim.warmup_samples} and optim.warmup_steps={config.optim.warmup_steps}",
            keys=("optim.warmup_samples", "optim.warmup_steps"),
            remedy="null for one of them",
        )


def _largest_divisor(number: int, most: int) -> int:
    return next(divisor for divisor in range(min(most, number), 0, -1) if number % divisor == 0)


def _places(keys: Sequence[str], given: dict[str, Any], origin: Origin) -> tuple[str, ...]:
    """Where the values of `keys` came from; a key whose place says little is named with its value."""

    def spoken_for(key: str) -> str:
        aliases = [spelling for spelling, canonical in SPELLINGS.items() if canonical == key and given[spelling] is not None]
        return max([key, *aliases], key=lambda name: origin.layer(name, given[name]))

    places = []
    for key in map(spoken_for, keys):
        place = origin.place(key, given[key])
        places.append(place if ":" in place else f"{key}={given[key]} ({place})")
    return tuple(dict.fromkeys(places))
