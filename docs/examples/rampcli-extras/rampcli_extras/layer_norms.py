"""Measures the norm of each layer's gradient."""

from collections.abc import Mapping

from torch import Tensor

from rampcli.runs.metrics import Chart, Metric
from rampcli.train.observers.model_observer import ModelInStep, ModelObserver

CHART = Chart(
    "layer_norms", "Gradient norm by layer", unit="before clipping", log=True, smooth=True
)


class LayerNormsObserver(ModelObserver):
    """Has a metric for each layer of the model, also for those of other ranks."""

    def __init__(self, layers: int, *, every_steps: int) -> None:
        self.every_steps = every_steps
        self.metrics = [
            Metric(
                f"grad_norm_{layer}",
                f"norm of the gradient of layer {layer} before clipping",
                group="layers",
                chart=CHART,
                label=f"layer {layer}",
                summary="last",
                over_ranks="norm",
            )
            for layer in range(layers)
        ]

    def measures(self, step: int) -> bool:
        """Returns whether a step is measured."""
        return step % self.every_steps == 0

    def measure(self, model: ModelInStep) -> Mapping[str, Tensor | float]:
        """Returns this rank's addends to the squared norms."""
        names: dict[str, list[str]] = {}
        for name in model.weights:
            if name.startswith("layers."):
                names.setdefault(name.split(".")[1], []).append(name)
        return {
            f"grad_norm_{layer}": model.squared_norm(of_layer, of_gradients=True)
            for layer, of_layer in names.items()
        }
