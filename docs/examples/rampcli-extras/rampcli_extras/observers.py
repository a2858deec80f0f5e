"""The norm of each layer's gradient: `logging.observers=[layer_norms]`."""

from dataclasses import dataclass
from typing import Any

from rampcli.extend import observer, setting


@dataclass(kw_only=True, slots=True)
class LayerNorms:
    """The settings: `logging.layer_norms.every_steps`."""

    every_steps: int = setting(1, "Interval between steps that are measured.", at_least=1)


@observer("layer_norms", settings=LayerNorms)
def layer_norms(config: Any, settings: LayerNorms) -> Any:
    """Returns what measures the layers of a rank."""
    from rampcli_extras.layer_norms import LayerNormsObserver  # imports torch

    return LayerNormsObserver(config.model.num_layers, every_steps=settings.every_steps)
