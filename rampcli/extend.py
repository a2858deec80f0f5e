"""Extends rampcli: registers optimisers, learning-rate decays, models and more under a name.

The decorators of this module register a function. A recipe file may use them, or the module that
an entry point of an installed package names. The name is then a value of the setting: after
`@optimizer("lion")`, `optim.optimizer=lion` works. A function may have settings of its own,
declared as a dataclass whose fields are made by `setting`. They get the keys `optim.lion.FIELD`,
and the function gets an instance as the argument `settings`. docs/guides/extend.md has examples.

Imports neither torch nor hydra. Let your module import torch inside its functions, so that
`rampcli plan` stays fast.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rampcli.config.extension_settings import check_declaration
from rampcli.plugins import extensions
from rampcli.plugins.extensions import Extension
from rampcli.settings.fields import own_setting as setting

__all__ = [
    "Documents",
    "data_source",
    "decay_style",
    "model",
    "observer",
    "optimizer",
    "reward",
    "setting",
    "tracker",
]

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True, slots=True)
class Documents:
    """The documents of a data source.

    Attributes:
        training: token ids of each document for training, NumPy arrays of integers [tokens].
        validation: the same for validation.
        tokenizer: contents of `tokenizer.json`, with which `rampcli generate` reads prompts and
            losses are given per byte. None if the tokens stand for no text.
    """

    training: Sequence[Any]
    validation: Sequence[Any] = ()
    tokenizer: str | None = None


def optimizer(
    name: str, *, settings: type | None = None, reads: Sequence[str] | None = None
) -> Callable[[Function], Function]:
    """Registers an optimiser as `optim.optimizer=NAME`.

    The function takes this rank's parameters by name and the section `optim`, an `OptimConfig`. It
    returns a `torch.optim.Optimizer` for all of them. The loop sets `lr` in each of its
    parameter groups before each step. Parameters may be DTensors. The tensors that it keeps in
    `state[parameter]` are saved in checkpoints.

    Args:
        reads: fields of the section `optim` that the function reads, such as `weight_decay`. Those
            of the learning rate need not be named. Others are refused if a user sets them. None:
            it may read all of them.
    """
    return _registering(extensions.OPTIMIZER_KEY, name, settings, reads)


def decay_style(name: str, *, settings: type | None = None) -> Callable[[Function], Function]:
    """Registers a learning-rate decay as `schedule.decay_style=NAME`.

    The function takes a `LearningRate` (peak, floor, end of the run) and a `Step` (consumed
    samples, batch size) and returns the learning rate after the warm-up.
    """
    return _registering(extensions.DECAY_STYLE_KEY, name, settings)


def model(name: str, *, settings: type | None = None) -> Callable[[Function], Function]:
    """Registers an architecture as `model.family=NAME`.

    The function takes a `ModelConfig` and the keywords `sequence_length` and `layers`. It returns a
    `rampcli.models.decoder.Decoder`, usually of a class that overrides `build_layer`.
    """
    return _registering(extensions.FAMILY_KEY, name, settings)


def data_source(name: str, *, settings: type | None = None) -> Callable[[Function], Function]:
    """Registers a data source as `data.source=NAME`.

    The function takes the configuration and returns `Documents`. Every host of a run calls it, and
    must get the same documents. They are held in memory.
    """
    return _registering(extensions.SOURCE_KEY, name, settings)


def observer(name: str, *, settings: type | None = None) -> Callable[[Function], Function]:
    """Registers an observer that measures the model as `logging.observers=[NAME]`.

    The function takes the configuration and returns a
    `rampcli.train.observers.model_observer.ModelObserver`, which declares the metrics that it
    measures. Every rank of a run calls it.
    """
    return _registering(extensions.OBSERVERS_KEY, name, settings)


def tracker(name: str, *, settings: type | None = None) -> Callable[[Function], Function]:
    """Registers a tracker as `logging.trackers=[NAME]`.

    The function takes the run directory, the `Position` to continue from and the name of the run.
    It returns a `rampcli.tracking.tracker.Tracker`. It is called in a process of its own.
    """
    return _registering(extensions.TRACKERS_KEY, name, settings)


def reward(name: str) -> Callable[[Function], Function]:
    """Registers a reward function as `rl.reward=NAME`.

    The function takes a prompt, a response and the example that the prompt comes from, and returns
    a number. It runs in a process of its own.
    """
    return _registering(extensions.REWARD_KEY, name, None)


def _registering(
    key: str, name: str, settings: type | None, reads: Sequence[str] | None = None
) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        extension = Extension(
            key=key,
            name=name,
            function=function,
            settings=settings,
            reads=None if reads is None else tuple(reads),
        )
        check_declaration(extension)
        extensions.register(extension)
        return function

    return register
