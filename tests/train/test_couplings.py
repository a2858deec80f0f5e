"""The values of the optimiser that follow the batch, in a run of two stages."""

from contextlib import suppress

import pytest
import torch
import torch.nn.functional as F

from rampcli import llm
from rampcli.errors import UsageError
from rampcli.runs.directory import COMPLETE
from rampcli.runs.rows import read_rows
from rampcli.train.optimizers import build_optimizers, check_coupled

SETTINGS = {
    "model.global_batch_size": "null",
    "model.step_batch_size_schedule": "'steps: 0:2 3:6'",
    "trainer.max_samples": "null",
    "trainer.max_steps": "6",
    "trainer.gradient_clip_val": "null",
    "rampup.at_boundary": "continue",
    "rampup.micro_batch": "largest",
    "data.micro_batch_size": "6",
    "optim.warmup_samples": "0",
    "optim.weight_decay": "30",
    "optim.beta2": "0.9",
    "schedule.decay_style": "constant",
    "schedule.lr_factors": "[1.25,2]",
    "schedule.beta2_coupling": "half_life",
    "schedule.weight_decay_coupling": "timescale",
}
BY_HAND = [(2, 3e-3 * 1.25, 0.9 ** (1 / 3), 30 / 3 / 1.25), (6, 3e-3 * 2, 0.9, 30 / 2)]
"""Batch, learning rate, beta2 and weight decay of each stage. Both have three steps."""


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_coupled_stages_train_as_a_loop_that_sets_these_values_by_hand(build_trainer, optimizer):
    trainer, run = build_trainer(SETTINGS | {"optim.optimizer": optimizer})
    [model] = trainer.passes.parts
    initial = {name: weight.clone() for name, weight in model.state_dict().items()}
    assert trainer.run() == COMPLETE
    trained = {name: weight.clone() for name, weight in model.state_dict().items()}

    model.load_state_dict(initial)
    matrices = [weight for weight in model.layers.parameters() if weight.ndim == 2]
    others = [weight for weight in model.parameters() if all(weight is not one for one in matrices)]
    decaying = [weight for weight in others if weight.ndim == 2]
    vectors = [weight for weight in others if weight.ndim < 2]
    adam = torch.optim.AdamW([{"params": decaying}, {"params": vectors, "weight_decay": 0.0}])
    by_hand = [adam]
    if optimizer == "muon":
        by_hand.append(build_optimizers([model], trainer.config.optim)[0])
    else:
        adam.param_groups[0]["params"] += matrices
    consumed = 0
    for batch, lr, beta2, weight_decay in BY_HAND:
        for _ in range(3):
            split = trainer.plan.batch_on(trainer.plan.stage_at(consumed), 1)
            [read] = trainer.loader.read(consumed, split).micro_batches
            F.cross_entropy(model(read.tokens).flatten(0, 1), read.labels.flatten()).backward()
            for one in by_hand:
                decays = one.param_groups[0]
                decays["weight_decay"] = weight_decay
                for group in one.param_groups:
                    group["lr"] = lr
                    if one is adam:
                        group["betas"] = (0.9, beta2)
                one.step()
                one.zero_grad()
            consumed += batch
    flat = [torch.cat([w.ravel() for w in of.values()]) for of in (trained, model.state_dict())]
    way = flat[1] - torch.cat([weight.ravel() for weight in initial.values()])
    # Rounding moves single weights: the steps of both optimisers are nearly those of a sign.
    assert (flat[0] - flat[1]).norm() < 0.02 * way.norm()
    rows = [
        tuple(row[name] for name in ("global_batch_size", "lr", "beta2", "weight_decay"))
        for row in read_rows(run.metrics)
    ]
    assert rows == [pytest.approx(stage) for stage in BY_HAND for _ in range(3)]


def test_without_couplings_the_optimiser_keeps_its_values_and_rows_do_not_name_them(build_trainer):
    trainer, run = build_trainer(
        SETTINGS | {"schedule.beta2_coupling": "none", "schedule.weight_decay_coupling": "none"}
    )
    assert trainer.run() == COMPLETE
    [adam] = trainer.optimizers
    assert [group["weight_decay"] for group in adam.param_groups] == [30, 0]
    assert {group["betas"] for group in adam.param_groups} == {(0.9, 0.9)}
    assert not any({"beta2", "weight_decay"} & row.keys() for row in read_rows(run.metrics))


@pytest.mark.parametrize(
    ("group", "wrong"),
    [
        ({"betas": (0.9, 0.9), "weight_decay": 30}, []),
        ({"betas": (0.9, 0.9), "weight_decay": 0.0}, ["weight_decay"]),
        ({"betas": (0.9, 0.99), "weight_decay": 30}, ["beta2"]),
        ({"weight_decay": 30}, ["beta2"]),
        ({"betas": (0.9, 0.9)}, ["weight_decay"]),
        ({"betas": (0.9, 0.9, 0.9), "weight_decay": 30}, ["beta2"]),
    ],
)
def test_an_optimiser_whose_groups_have_other_values_than_the_coupled_ones_is_refused(group, wrong):
    config = llm.from_factory("llama3_tiny")
    config.optim.beta2, config.optim.weight_decay = 0.9, 30
    optimizer = torch.optim.SGD([{"params": [torch.zeros(1)]} | group])
    optimizer.param_groups[0] = group
    refused = []
    for name, coupling in (("beta2", "half_life"), ("weight_decay", "timescale")):
        config.schedule.beta2_coupling = config.schedule.weight_decay_coupling = "none"
        setattr(config.schedule, f"{name}_coupling", coupling)
        with suppress(UsageError):
            check_coupled([optimizer], config)
            continue
        refused.append(name)
    assert refused == wrong
