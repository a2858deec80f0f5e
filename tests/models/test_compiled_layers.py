"""A layer of each family is one graph for torch.compile, whatever its mask and recomputation."""

from functools import partial

import pytest
import torch

from models.drawn import draw_decoder
from models.families import FAMILIES
from rampcli.train.build import compile_layers, recompute_activations

LENGTH = 24


@pytest.fixture(autouse=True)
def graphs(monkeypatch):
    """The graphs that were compiled. They run as they are: no code is generated for them."""
    found = []

    def keep(graph, _inputs):
        found.append(graph)
        return graph.forward

    whole = partial(torch.compile, backend=keep, fullgraph=True)  # a break is an error
    monkeypatch.setattr(torch, "compile", whole)
    torch.compiler.reset()
    yield found
    torch.compiler.reset()


def train_and_validate(family, *, has_documents, mode="none"):
    """Takes the passes of a step and of a validation in bf16, with compiled layers."""
    model = draw_decoder(FAMILIES[family], LENGTH)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    recompute_activations(model.layers.values(), mode)
    compile_layers(model.layers.values())
    tokens = torch.arange(2 * LENGTH).view(2, LENGTH)
    positions = torch.arange(LENGTH).remainder(9).repeat(2, 1) if has_documents else None
    model(tokens, positions, labels=tokens).backward()
    with torch.no_grad():
        model(tokens, positions, labels=tokens)


@pytest.mark.parametrize("has_documents", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_layer_is_one_graph_in_training_and_one_in_validation(family, has_documents, graphs):
    train_and_validate(family, has_documents=has_documents)
    assert len(graphs) == 2


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_a_layer_whose_activations_are_recomputed_is_one_graph(mode, graphs):
    train_and_validate("mistral", has_documents=True, mode=mode)
    assert len(graphs) == 2
