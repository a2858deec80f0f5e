"""What observers measure on the model is the same on every mesh."""

import math
from collections.abc import Mapping

import pytest
from torch import Tensor

from distributed.noise import measured
from distributed.test_noise_scale import MESHES
from rampcli.runs.metrics import Metric
from rampcli.train.observers.model_observer import ModelInStep, ModelObserver
from ranks import run_ranks

PARTS = ("layers.0", "layers.1", "")


class Norms(ModelObserver):
    """Measures the norms of the gradients and of the weights of each layer and of the rest."""

    metrics = [  # noqa: RUF012
        Metric(f"{kind}_{index}", "", over_ranks="norm")
        for kind in ("gradient", "weight")
        for index in range(len(PARTS))
    ]

    def measure(self, model: ModelInStep) -> Mapping[str, Tensor]:
        found = {}
        for index, part in enumerate(PARTS):
            names = [
                name
                for name in model.weights
                if (name.startswith(part) if part else not name.startswith("layers."))
            ]
            if names:  # other ranks of a pipeline have the rest
                found[f"gradient_{index}"] = model.squared_norm(names, of_gradients=True)
                found[f"weight_{index}"] = model.squared_norm(names)
        return found


@pytest.mark.parametrize("tied", [False, True])
def test_every_mesh_measures_the_norms_of_layers_that_one_rank_measures(tied, tmp_path):
    (alone,) = run_ranks(1, measured, {}, {}, 1, tied, [Norms()], logs=tmp_path)
    assert len(alone.measured) == len(Norms.metrics)
    assert math.sqrt(sum(alone.measured[: len(PARTS)])) == pytest.approx(alone.grad_norm)
    for name, (ranks, parallel, trainer) in MESHES.items():
        if tied and name in ("pipeline", "compiled"):  # whose noise cannot be measured
            continue
        for found in run_ranks(
            ranks, measured, parallel, trainer, 1, tied, [Norms()], logs=tmp_path
        ):
            assert found.measured == pytest.approx(alone.measured, rel=1e-5), name
            assert (found.loss, found.groups) == (
                pytest.approx(alone.loss, rel=1e-5),
                pytest.approx(alone.groups, rel=1e-5),
            ), name
