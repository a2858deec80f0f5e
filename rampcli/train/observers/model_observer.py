"""Observers that measure the model in each step, such as the norm of each layer's gradient."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rampcli.config.extension_settings import extension_function
from rampcli.errors import UsageError
from rampcli.parallel.mesh import is_first_copy, local_part
from rampcli.plugins.extensions import OBSERVERS_KEY
from rampcli.runs.metrics import Metric, check_declared
from rampcli.settings.config import Config
from rampcli.train.observers.observer import LoopObserver
from rampcli.train.passes import Passes
from rampcli.train.step import sum_of_squares


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelInStep:
    """This rank's part of the model, between the backward passes of a step and its update.

    In reinforcement learning, it is that of the last update of the step.

    Attributes:
        step: number of the step, from 1.
        weights: parameters by name. They are DTensors if ranks share them.
        device: device of the model.
        denominator: number by which `.grad` of the parameters is still to be divided.
    """

    step: int
    weights: Mapping[str, nn.Parameter]
    device: torch.device
    denominator: float = 1.0

    def gradient(self, name: str) -> Tensor | None:
        """Returns the gradient of a parameter before clipping, a DTensor if that is one."""
        gradient = self.weights[name].grad
        return (
            gradient if gradient is None or self.denominator == 1 else gradient / self.denominator
        )

    def squared_norm(self, names: Iterable[str], *, of_gradients: bool = False) -> Tensor:
        """Returns this rank's addend to the squared norm of some weights, a float64 scalar.

        Numbers that several ranks hold are counted by one of them.

        Args:
            of_gradients: whether it is the norm of their gradients before clipping.
        """
        counted = [self.weights[name] for name in names if is_first_copy(self.weights[name])]
        tensors = [one.grad if of_gradients else one.detach() for one in counted]
        parts = [local_part(tensor) for tensor in tensors if tensor is not None]
        total = sum_of_squares(parts, device=self.device)
        return total / self.denominator**2 if of_gradients else total


class ModelObserver(LoopObserver):
    """Measures the model. Every rank has one, which declares the same metrics.

    Attributes:
        metrics: the metrics that it measures. They become columns of metrics.jsonl, and trackers,
            the page and reports show them as each declares.
    """

    metrics: Sequence[Metric] = ()

    def measures(self, step: int) -> bool:  # noqa: ARG002
        """Returns whether a step is measured. Every rank must return the same."""
        return True

    def measure(self, model: ModelInStep) -> Mapping[str, Tensor | float]:
        """Returns this rank's numbers by the names of metrics, scalars if they are tensors.

        `Metric.over_ranks` says how the numbers of all ranks become one. A metric that this rank
        has no number for counts as 0. Do not wait for the device: the step goes on meanwhile.
        """
        raise NotImplementedError


class Measurement:
    """What observers measure in one step. It does nothing if none of them does.

    Args:
        step: number of the step, from 1.
    """

    def __init__(self, observers: Iterable[ModelObserver], step: int) -> None:
        self.step = step
        self.observers = [one for one in observers if one.measures(step)]

    def addends(self, passes: Passes, *, denominator: float = 1.0) -> list[Tensor]:
        """Returns this rank's addends to the numbers of the step, float64 scalars on the device."""
        if not self.observers:
            return []
        weights = {
            name: weight
            for part in passes.parts
            for name, weight in part.stage_parameters().items()
        }
        model = ModelInStep(
            step=self.step, weights=weights, device=passes.device, denominator=denominator
        )
        found: list[Tensor] = []
        for observer in self.observers:
            with torch.no_grad():
                numbers = dict(observer.measure(model))
            for metric in observer.metrics:
                number = local_part(torch.as_tensor(numbers.pop(metric.name, 0.0)))
                found.append(number.detach().to(passes.device, torch.float64).reshape(()))
            if numbers:
                raise ValueError(f"{type(observer).__name__} has not declared {[*numbers]}")
        return found

    def columns(self, totals: Sequence[float]) -> dict[str, float | None]:
        """Returns the columns of the step from the sums of the addends over all ranks."""
        metrics = [metric for observer in self.observers for metric in observer.metrics]
        columns: dict[str, float | None] = {}
        for metric, total in zip(metrics, totals, strict=True):
            value = math.sqrt(max(0.0, total)) if metric.over_ranks == "norm" else total
            columns[metric.name] = value if math.isfinite(total) else None
        return columns


def build_model_observers(config: Config) -> list[ModelObserver]:
    """Returns the observers that `logging.observers` names. Every rank calls this.

    Raises:
        UsageError: a function returns something else, or metrics are declared that a run cannot
            have.
    """
    observers, names = [], config.logging.observers
    for name in names:
        function = extension_function(OBSERVERS_KEY, name, config.logging)
        assert function is not None  # there are no built-in ones
        observer = function(config)
        if not isinstance(observer, ModelObserver):
            raise UsageError(
                f"{OBSERVERS_KEY}=[{name}] returns {type(observer).__name__}, which is not a"
                " ModelObserver",
                keys=(OBSERVERS_KEY,),
                remedy="a class that inherits from"
                " rampcli.train.observers.model_observer.ModelObserver",
            )
        observers.append(observer)
    try:
        check_declared([metric for one in observers for metric in one.metrics])
    except ValueError as error:
        raise UsageError(
            f"{OBSERVERS_KEY}=[{','.join(names)}]: {error}",
            keys=(OBSERVERS_KEY,),
            remedy="another metric",
        ) from error
    return observers
