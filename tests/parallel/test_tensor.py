import numpy as np
import pytest
import torch

from models.families import FAMILIES
from parallel.log_probs import log_probs_and_gradients
from rampcli.models.decoder import Decoder
from rampcli.parallel.tensor import STYLES, plan_of
from ranks import run_ranks


def decoder(family: str) -> Decoder:
    with torch.device("meta"):
        return Decoder(FAMILIES[family], sequence_length=16)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_belongs_to_a_module_with_a_style(family):
    """A parameter without a style would stay plain and be counted once for each rank."""
    model = decoder(family)
    owners = {name.rpartition(".")[0] for name, _ in model.named_parameters()}
    assert owners <= set(plan_of(model))


def test_every_declared_submodule_exists_and_every_style_is_used():
    models = [decoder(family) for family in FAMILIES]
    planned = {
        (type(module), child, style)
        for model in models
        for module in model.modules()
        for child, style in getattr(module, "tensor_plan", {}).items()
    }
    existing = {
        (type(module), child)
        for model in models
        for module in model.modules()
        for child, _ in [("", module), *module.named_children()]
    }
    assert {(owner, child) for owner, child, _ in planned} <= existing
    assert {style for _, _, style in planned} == set(STYLES)


def test_ranks_that_share_weights_have_the_log_probs_and_the_gradient_of_one_process(tmp_path):
    def results(ranks: int, tensor_parallel_size: int) -> list[dict]:
        return run_ranks(ranks, log_probs_and_gradients, tensor_parallel_size, logs=tmp_path)

    (alone,) = results(1, 1)
    assert alone["found"].all(axis=0).any()
    by_data, by_vocabulary = results(2, 1), results(2, 2)
    found = [
        np.concatenate([rank["found"] for rank in by_data], axis=1),
        *(rank["found"] for rank in by_vocabulary),
    ]
    for log_probs_and_entropies in found:
        np.testing.assert_allclose(log_probs_and_entropies, alone["found"], rtol=1e-5, atol=1e-5)
    for rank in by_data + by_vocabulary:
        for name, gradient in alone["gradients"].items():
            np.testing.assert_allclose(
                rank["gradients"][name], gradient, rtol=1e-4, atol=1e-6 * abs(gradient).max()
            )
