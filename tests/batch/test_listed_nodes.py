"""Nodes that are listed for each stage (`rampup.nodes`)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plans import divides, fleet_of, plan, scheduled, sizes_and_nodes
from rampcli.batch.quantities import MOST_STAGES_OFFERED
from rampcli.errors import UsageError, UsageErrors
from remedies import offers

FLEET = fleet_of(16, 8)
RAMP = {"rampup": [256, 256, 10_000], "target": 1024, "micro": 4, "fleet": FLEET}
"""Four stages: batches of 256, 512, 768 and 1024."""


def mended(run, offer):
    """Returns the arguments of `plan` with what an error offers."""
    names = {
        "rampup.nodes": "nodes",
        "rampup.node_policy": "policy",
        "data.micro_batch_size": "micro",
    }
    changed = {names[key]: value for key, value in offer.items() if key in names}
    if "trainer.num_nodes" in offer:
        fleet = run["fleet"]
        changed["fleet"] = fleet_of(offer["trainer.num_nodes"], fleet.devices)
    return run | changed


def refusal(**run):
    with pytest.raises(UsageError) as refused:
        plan(**run)
    return refused.value


@given(nodes=st.lists(st.integers(1, 20), min_size=4, max_size=4))
def test_each_stage_has_its_listed_nodes_or_the_offers_plan(nodes):
    batches = [256, 512, 768, 1024]
    try:
        planned = plan(**RAMP, nodes=nodes)
    except UsageError as error:
        errors = error.errors if isinstance(error, UsageErrors) else (error,)
        wrong = [
            n > FLEET.num_nodes or not divides(size, n, micro=4, fleet=FLEET)
            for size, n in zip(batches, nodes, strict=True)
        ]
        assert any(wrong)
        if len(errors) == 1:
            assert offers(errors[0])
            for offer in offers(errors[0]):
                plan(**mended(RAMP | {"nodes": nodes}, offer))
    else:
        assert sizes_and_nodes(planned) == list(zip(batches, nodes, strict=True))


@given(nodes=st.lists(st.integers(-2, 16), max_size=7).filter(lambda nodes: len(nodes) != 4))
def test_a_list_of_another_length_is_refused_with_the_stages_and_offers_that_plan(nodes):
    error = refusal(**RAMP, nodes=nodes)
    assert "4 stages, of 256, 512, 768 and 1024 samples" in error.message
    assert error.keys == ("rampup.nodes", "model.rampup_batch_size")
    first, *_ = offers(error)
    assert len(first["rampup.nodes"]) == 4
    for offer in offers(error):
        plan(**mended(RAMP | {"nodes": nodes}, offer))


@given(nodes=st.permutations([8, 16, 12, 4]), policy=st.sampled_from(["nemo", "best"]))
def test_a_list_changes_nothing_but_the_processes(nodes, policy):
    run = RAMP | {"micro": 1, "rampup": [3072, 3072, 10**6], "target": 12_288}
    listed, chosen = plan(**run, nodes=nodes), plan(**run, policy=policy)
    assert listed.ramp == chosen.ramp
    assert [(one.first_sample, one.steps) for one in listed.stages] == [
        (one.first_sample, one.steps) for one in chosen.stages
    ]


def test_a_ramp_published_with_its_data_parallel_ranks_is_planned_with_them():
    """Nemotron-4 340B (arXiv 2406.11704, table 2): tensor 8, pipeline 12."""
    planned = scheduled(
        "0:768 200B:1536 400B:2304",
        fleet=fleet_of(768, 8, tensor=8, pipeline=12),
        sequence_length=4096,
        nodes=[192, 384, 768],
        max_tokens=8 * 10**12,
    )
    assert [(stage.world_size, stage.data_parallel_size) for stage in planned.stages] == [
        (1536, 16),
        (3072, 32),
        (6144, 64),
    ]


def test_a_list_names_the_stages_in_their_order_although_sizes_repeat():
    planned = scheduled("samples: 0:8 80:16 160:8", fleet=fleet_of(2, 4), nodes=[1, 2, 2])
    assert sizes_and_nodes(planned) == [(8, 1), (16, 2), (8, 2)]


def test_stages_after_the_end_of_the_run_count():
    planned = plan(**RAMP, nodes=[8, 16, 12, 16], max_steps=3)
    assert sizes_and_nodes(planned) == [(256, 8)]
    # Nobody trains the other stages, so their nodes need not fit.
    assert sizes_and_nodes(plan(**RAMP, nodes=[8, 5, 5, 99], max_steps=3)) == [(256, 8)]
    assert "4 stages" in refusal(**RAMP, nodes=[8], max_steps=3).message


def test_skipped_batch_sizes_do_not_count():
    skipping = {"rampup": [32, 32, 2], "target": 1024, "micro": 4, "fleet": FLEET}
    assert sizes_and_nodes(plan(**skipping, nodes=[1, 16])) == [(32, 1), (1024, 16)]


def test_only_coming_stages_must_fit_their_nodes():
    nodes = [8, 3, 12, 16]
    assert "batch 512 (stage 1) is not a multiple of 96" in refusal(**RAMP, nodes=nodes).message
    second = plan(**RAMP, nodes=[8, 16, 12, 16]).stages[2].first_sample
    planned = plan(**RAMP, nodes=nodes, consumed_samples=second)
    assert len(planned.passed) == 2
    assert sizes_and_nodes(planned) == [(768, 12), (1024, 16)]
    # A run that resumes on a smaller cluster has passed the stage that used more nodes.
    smaller = RAMP | {"fleet": fleet_of(12, 8)}
    planned = plan(**smaller, nodes=[8, 16, 12, 8], consumed_samples=second)
    assert sizes_and_nodes(planned) == [(768, 12), (1024, 8)]


def test_nodes_beyond_those_of_the_run_are_refused_with_the_number_that_is_needed():
    error = refusal(**RAMP, nodes=[8, 16, 24, 32])
    assert error.message == "rampup.nodes has 32 nodes for stage 3, above trainer.num_nodes=16"
    [offer] = offers(error)
    assert offer == {"trainer.num_nodes": 32}
    plan(**mended(RAMP | {"nodes": [8, 16, 24, 32]}, offer))


def test_a_list_beside_another_policy_or_decreased_batches_is_refused():
    nodes = [8, 16, 12, 16]
    assert refusal(**RAMP, nodes=nodes, policy="best").keys == (
        "rampup.nodes",
        "rampup.node_policy",
    )
    decreasing = refusal(**RAMP, nodes=nodes, decrease_batch_size_if_needed=True)
    assert "rampup.decrease_batch_size_if_needed=true" in decreasing.message


def test_nodes_that_do_not_hold_the_model_are_refused_by_stage():
    fleet = fleet_of(16, 8, tensor=8, pipeline=2)
    error = refusal(rampup=[8, 8, 100], target=16, fleet=fleet, nodes=[2, 3])
    assert error.message.startswith("stage 1 on 3 nodes: 24 processes do not divide into tensor 8")
    assert offers(error)[0] == {"rampup.nodes": [2, 4]}


def test_more_stages_than_a_message_can_list_are_refused_with_a_policy():
    stages = MOST_STAGES_OFFERED + 1
    run = {"rampup": [8, 8, 10_000], "target": 8 * stages, "fleet": fleet_of(1, 8)}
    error = refusal(**run, nodes=[1])
    assert (
        f"has {stages} stages, of 8, 16, 24, 32, 40 and {stages - 5} more samples" in error.message
    )
    assert offers(error) == [{"rampup.nodes": None}]
    plan(**run)


def test_without_nodes_that_fit_a_multiple_is_named():
    error = refusal(rampup=[6, 4, 100], target=14, fleet=fleet_of(4, 4), nodes=[1, 2, 3])
    assert error.remedy == "batch sizes that are multiples of 4"
    assert "; stages 1 and 2 do not fit their nodes either" in error.message


def test_an_offered_list_keeps_the_requested_accumulation():
    run = RAMP | {"accumulate": 2}
    error = refusal(**run, nodes=[8, 16, 12, 15])
    first, *others = offers(error)
    assert first == {"rampup.nodes": [8, 16, 12, 16]}
    for offer in (first, *others):
        plan(**mended(run | {"nodes": [8, 16, 12, 15]}, offer))


def test_a_varying_micro_batch_divides_the_batch_on_the_listed_nodes():
    planned = plan(**RAMP | {"micro": 16}, nodes=[16, 16, 16, 16], micro_batch_rule="largest")
    assert [stage.micro_batch_size for stage in planned.stages] == [2, 4, 6, 8]
