from fnmatch import fnmatchcase

import pytest
import torch

from models.families import FAMILIES
from rampcli.models.decoder import Decoder
from rampcli.parallel.tensor import styles


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_is_split_or_shared_by_a_style_and_every_style_has_a_module_somewhere(
    family,
):
    """A parameter that no style knows would stay plain beside the others, and count once for each rank."""
    with torch.device("meta"):
        model = Decoder(FAMILIES[family], sequence_length=16)
    owners = {name.rpartition(".")[0] for name, _ in model.named_parameters()}
    for owner in owners:
        assert [
            pattern
            for pattern in styles()
            if fnmatchcase(owner, pattern) and owner.count(".") == pattern.count(".")
        ]


def test_no_style_is_for_a_module_that_there_is_not():
    with torch.device("meta"):
        names = {
            name
            for model in FAMILIES.values()
            for name, _ in Decoder(model, sequence_length=16).named_modules()
        }
    assert all(any(fnmatchcase(name, pattern) for name in names) for pattern in styles())
