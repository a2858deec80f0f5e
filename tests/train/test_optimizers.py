import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rampcli.checkpoint.state import named_tensors
from rampcli.models.decoder import Decoder
from rampcli.settings import optimizers
from rampcli.settings.optimizers import OPTIMIZERS
from rampcli.train.muon import Muon, divide
from rampcli.train.optimizers import build_optimizers
from rampcli.train.step import skips_on_device, update_weights


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_weight_decay_applies_only_to_matrices_and_each_parameter_has_one_optimiser(
    small_gpt, optimizer
):
    small_gpt.optim.optimizer = optimizer
    model = Decoder(small_gpt.model, sequence_length=16)
    decays = [
        (id(parameter), group["weight_decay"])
        for one in build_optimizers([model], small_gpt.optim)
        for group in one.param_groups
        for parameter in group["params"]
    ]
    assert len(decays) == len(list(model.parameters()))
    decay_of = dict(decays)
    for parameter in model.parameters():
        assert decay_of[id(parameter)] == (
            small_gpt.optim.weight_decay if parameter.ndim == 2 else 0.0
        )


def test_muon_optimises_exactly_the_matrices_of_the_layers(small_llama):
    small_llama.optim.optimizer = "muon"
    model = Decoder(small_llama.model, sequence_length=16)
    muon, _ = build_optimizers([model], small_llama.optim)
    names = {parameter: name for name, parameter in model.named_parameters()}
    of_muon = {names[parameter] for group in muon.param_groups for parameter in group["params"]}
    assert of_muon == {
        name for name in names.values() if name.startswith("layers.") and "norm" not in name
    }


@pytest.mark.parametrize(
    ("stacked", "iterations"),
    [(1, 5), (200, 5), (optimizers.MAX_STACK_ELEMENTS, 5), (optimizers.MAX_STACK_ELEMENTS, 3)],
)
def test_muon_takes_the_same_steps_as_torchs_muon_for_any_stack_size(
    monkeypatch, stacked, iterations
):
    monkeypatch.setattr(optimizers, "MAX_STACK_ELEMENTS", stacked)
    shapes = [(12, 8), (8, 8), (12, 8), (8, 20), (12, 8)]
    mine, theirs = (
        [torch.nn.Parameter(randn(*shape, seed=seed)) for seed, shape in enumerate(shapes)]
        for _ in range(2)
    )
    settings = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.95}
    ours = Muon(mine, **settings, iterations=iterations)
    torchs = torch.optim.Muon(
        theirs, **settings, ns_steps=iterations, adjust_lr_fn="match_rms_adamw"
    )
    for step in range(1, 4):
        for weights, optimizer in ((mine, ours), (theirs, torchs)):
            for number, weight in enumerate(weights):
                weight.grad = randn(*weight.shape, seed=100 * step + number)
            optimizer.step()
    rounding_of_bf16 = 0.02 * 0.2 * 20**0.5 * 2**-8
    torch.testing.assert_close(mine, theirs, atol=rounding_of_bf16, rtol=0)


@given(
    shapes=st.lists(st.sampled_from([(8, 8), (8, 24), (24, 8), (16, 16), (40, 16)]), min_size=1),
    ranks=st.integers(1, 9),
)
def test_each_weight_has_one_owner_and_no_owner_has_a_matrix_more_work_than_another(shapes, ranks):
    weights = [torch.nn.Parameter(torch.empty(shape)) for shape in shapes]
    owners = [(rank,) for rank in range(ranks)]
    rounds = divide(weights, owners)
    owned = {owner: [w for each in rounds for w in each.get(owner, ())] for owner in owners}
    assert sorted(id(w) for own in owned.values() for w in own) == sorted(map(id, weights))
    assert all(len({w.shape for w in stack}) == 1 for each in rounds for stack in each.values())
    work = [sum(w.numel() * min(w.shape) for w in own) for own in owned.values()]
    assert max(work) - min(work) <= max(w.numel() * min(w.shape) for w in weights)


def randn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("decided", [torch.tensor, bool], ids=["by the device", "by the host"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_that_is_skipped_changes_neither_weights_nor_state(small_llama, optimizer, decided):
    small_llama.optim.optimizer = optimizer
    model = Decoder(small_llama.model, sequence_length=16)
    built = build_optimizers([model], small_llama.optim)
    assert all(map(skips_on_device, built))

    def take_step(seed: int, *, skip: bool) -> list[torch.Tensor]:
        for number, weight in enumerate(model.parameters()):
            weight.grad = randn(*weight.shape, seed=100 * seed + number)
            if skip:
                weight.grad[..., 0] = math.nan
        update_weights(built, lr=0.01, skip=decided(skip))
        state = [one.state[weight] for one in built for weight in one.state]
        kept = [value for each in state for value in each.values()]
        return [tensor.clone() for tensor in (*model.parameters(), *kept)]

    take_step(1, skip=False)
    before = take_step(2, skip=False)
    for tensor, same in zip(before, take_step(3, skip=True), strict=True):
        assert torch.equal(tensor, same)
    assert not torch.equal(before[0], take_step(4, skip=False)[0])


@pytest.mark.parametrize("skip", [True, torch.tensor(True)], ids=["by the host", "by the device"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_skipped_steps_leave_what_a_checkpoint_needs_and_no_trace_in_the_next_step(
    small_llama, optimizer, skip
):
    small_llama.optim.optimizer = optimizer
    weights, saved = [], []
    for skips in ([], [skip], [skip, skip]):
        model = Decoder(small_llama.model, sequence_length=16)
        for number, weight in enumerate(model.parameters()):
            torch.nn.init.normal_(weight, generator=torch.Generator().manual_seed(number))
        built = build_optimizers([model], small_llama.optim)
        for skipped in [*skips, False]:
            for weight in model.parameters():
                weight.grad = torch.full_like(weight, math.nan if skipped is not False else 0.1)
            update_weights(built, lr=0.01, skip=skipped)
            saved.append({name for name, _, _ in named_tensors([model], built, copies=True)})
        weights.append([weight.detach().clone() for weight in model.parameters()])
    assert all(names == saved[0] for names in saved)
    for others in weights[1:]:
        assert all(map(torch.equal, weights[0], others))
