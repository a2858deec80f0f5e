import pytest
import torch

from models.families import FAMILIES
from rampcli.models.decoder import Decoder
from rampcli.parallel.tensor import STYLES, plan_of


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
