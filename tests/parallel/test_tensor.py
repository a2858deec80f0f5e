from functools import partial

import numpy as np
import pytest
import torch

from models.families import FAMILIES
from rampcli.data.corpus import IGNORED
from rampcli.models.decoder import Decoder
from rampcli.models.loss import token_log_probs
from rampcli.parallel.mesh import TENSOR
from rampcli.parallel.tensor import PARALLEL_STYLES, loss_over, plan_of, token_log_probs_of_shards
from rampcli.settings.config import Config
from rampcli.settings.model import ModelConfig
from ranks import build_passes, joined, run_ranks, whole

TEMPERATURE = 0.7


def log_probs_and_gradients(tensor_parallel_size: int) -> dict:
    """Returns the log-probabilities and entropies of four pairs, and the whole gradients.

    The other ranks are data-parallel. The gradient is that of a sum in which each token has another
    factor.
    """
    config = Config(
        model=ModelConfig(
            num_layers=2, hidden_size=32, ffn_hidden_size=48, num_query_groups=2, vocab_size=64
        )
    )
    config.parallel.tensor_parallel_size = tensor_parallel_size
    tokens, labels = (
        torch.randint(64, (4, 16), generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)
    )
    for pair in range(4):
        labels[pair, :3] = labels[pair, 16 - 2 * pair :] = IGNORED
    factors = torch.linspace(-1, 2, tokens.numel()).view_as(tokens)
    with joined() as (rank, ranks):
        passes = build_passes(config)
        (model,) = passes.parts
        compute = token_log_probs if tensor_parallel_size == 1 else token_log_probs_of_shards
        model.loss = partial(compute, temperature=TEMPERATURE)
        shares = ranks // tensor_parallel_size
        share = rank // tensor_parallel_size
        tokens, labels, factors = (
            plane.chunk(shares)[share] for plane in (tokens, labels, factors)
        )
        with loss_over(passes.meshes.data[TENSOR]):
            found = model(tokens, labels=labels)
            # FSDP divides by the data-parallel ranks.
            (shares * (found[0] * factors).sum()).backward()
        gradients = {
            name: whole(parameter.grad).numpy() for name, parameter in model.named_parameters()
        }
    return {"found": found.detach().numpy(), "gradients": gradients}


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
    assert {style for _, _, style in planned} == set(PARALLEL_STYLES)


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
