"""The micro batch of each stage: one for all, or the largest that divides each batch."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plans import DECREASE, EVEN, FLEETS, chosen, divides, fleet_of, plan, scheduled, works_of
from rampcli.batch.micro_batch import MicroBatchRule
from rampcli.batch.node_policies import NODE_POLICIES, nemo_schedule
from rampcli.batch.plan import ParallelSizes
from rampcli.batch.throughput import Throughput
from rampcli.errors import UsageError

LARGEST = {"micro_batch_rule": "largest"}
SIZES = st.integers(1, 240)
PIPELINES = st.one_of(
    st.just(ParallelSizes()),
    st.builds(
        ParallelSizes,
        pipeline=st.sampled_from([2, 4]),
        virtual_pipeline=st.sampled_from([1, 2]),
        pipeline_microbatches=st.sampled_from([1, 4, 8]),
    ),
)


def micros(planned):
    return [(stage.micro_batch_size, stage.accumulate_grad_batches) for stage in planned.stages]


def is_legal(micro, batch, ranks, parallel):
    if batch % (micro * ranks) or micro % parallel.pipeline_microbatches:
        return False
    passing = batch // (micro * ranks) * parallel.pipeline_microbatches
    return parallel.virtual_pipeline == 1 or passing % parallel.pipeline == 0


@given(batch=SIZES, most=st.integers(1, 40), ranks=st.integers(1, 8), parallel=PIPELINES)
def test_a_micro_batch_that_varies_is_the_largest_legal_one(batch, most, ranks, parallel):
    rule = MicroBatchRule(size=most, varies=True, parallel=parallel)
    legal = [size for size in range(1, most + 1) if is_legal(size, batch, ranks, parallel)]
    assert rule.on(batch, ranks) == max(legal, default=None)
    if most >= parallel.pipeline_microbatches:
        assert bool(legal) is (batch % (ranks * rule.smallest_share) == 0)


@given(batch=SIZES, size=st.integers(1, 40), ranks=st.integers(1, 8), parallel=PIPELINES)
def test_a_fixed_micro_batch_is_itself_or_does_not_divide(batch, size, ranks, parallel):
    found = MicroBatchRule(size=size, parallel=parallel).on(batch, ranks)
    assert found == (size if batch % (size * ranks) == 0 else None)


def test_each_stage_has_the_largest_micro_batch_of_its_nodes():
    planned = plan([4, 2, 80], 12, fleet=fleet_of(1, 1), micro=12, policy="fixed", **LARGEST)
    assert micros(planned) == [(4, 1), (6, 1), (8, 1), (10, 1), (12, 1)]
    smaller = plan([4, 2, 80], 12, fleet=fleet_of(1, 1), micro=5, policy="fixed", **LARGEST)
    assert micros(smaller) == [(4, 1), (3, 2), (4, 2), (5, 2), (4, 3)]


@given(
    fleet=FLEETS,
    most=st.integers(1, 12),
    start=SIZES,
    increment=SIZES,
    increments=st.integers(1, 4),
    policy=st.sampled_from(["nemo", "best", "fixed"]),
)
def test_every_plan_has_whole_micro_batches_up_to_the_given_one(
    fleet, most, start, increment, increments, policy
):
    sizes = [start + index * increment for index in range(increments + 1)]
    works = works_of(sizes)
    nodes = chosen(policy, works, micro=most, fleet=fleet, varies=True)
    allowed = NODE_POLICIES[policy].allowed_nodes(fleet)
    rule = MicroBatchRule(size=most, varies=True, parallel=fleet.parallel)
    for size, count in zip(sizes, nodes, strict=True):
        if count is not None:
            ranks = fleet.data_parallel_size(count)
            assert size % (ranks * rule.on(size, ranks)) == 0
        elif policy == "best":
            assert all(size % fleet.data_parallel_size(n) for n in allowed)


@given(fleet=FLEETS, most=st.integers(1, 8), start=SIZES, increment=SIZES)
def test_nemos_nodes_are_those_of_the_largest_micro_batch_for_which_nemo_has_an_answer(
    fleet, most, start, increment
):
    sizes = [start, start + increment, start + 2 * increment]

    def schedule(micro):
        return list(nemo_schedule(sizes, micro_batch_size=micro, fleet=fleet).values())

    answers = [nodes for micro in range(most, 0, -1) if None not in (nodes := schedule(micro))]
    nodes = answers[0] if answers else schedule(most)
    found = chosen("nemo", works_of(sizes), micro=most, fleet=fleet, varies=True)
    assert found == [
        n if n is not None and divides(size, n, micro=1, fleet=fleet) else None
        for n, size in zip(nodes, sizes, strict=True)
    ]


def test_best_weighs_nodes_against_the_micro_batch_that_a_stage_has_there():
    rates = {(1, 1): 1.0, (8, 1): 10.0}
    clock = replace(EVEN, throughput=Throughput(points=rates, basis="a test"))
    run = {"works": works_of([8]), "fleet": fleet_of(8, 1), "clock": clock}
    assert chosen("best", **run, micro=8, varies=True) == [1]
    assert chosen("best", **run, micro=1, varies=True) == [8]
    assert chosen("best", **(run | {"clock": EVEN}), micro=8, varies=True) == [8]


def test_the_accumulation_of_the_largest_batch_is_that_of_its_own_micro_batch():
    run = {"fleet": fleet_of(1, 2), "micro": 5, "policy": "fixed"} | LARGEST
    assert micros(plan([4, 4, 80], 16, **run, accumulate=2)) == [(2, 1), (4, 1), (3, 2), (4, 2)]
    with pytest.raises(UsageError, match=r"= 8, but model\.global_batch_size=16") as refusal:
        plan([4, 4, 80], 16, **run, accumulate=1)
    assert "trainer.accumulate_grad_batches=2" in refusal.value.remedy


@pytest.mark.parametrize("policy", ["nemo", "best", "fixed"])
def test_a_batch_that_ranks_do_not_share_is_refused_with_changes_that_help(policy):
    run = {"fleet": fleet_of(1, 4), "micro": 8, "policy": policy} | LARGEST
    with pytest.raises(UsageError, match="at least 1 sample per micro batch") as refusal:
        plan([4, 2, 80], 12, **run)
    assert "data.micro_batch_size=" not in refusal.value.remedy
    increment = refusal.value.remedy.split(", or ")[0].strip("'")
    assert increment == "model.rampup_batch_size=[4,4,80]"
    assert plan([4, 4, 80], 12, **run)


def test_a_decreased_batch_loses_only_what_ranks_do_not_share():
    run = {"fleet": fleet_of(1, 4), "micro": 8, "policy": "fixed", DECREASE.split(".")[1]: True}
    fixed, largest = plan([33, 33, 80], 99, **run), plan([33, 33, 80], 99, **run, **LARGEST)
    assert [stage.global_batch_size for stage in fixed.stages] == [32, 64, 96]
    assert [stage.global_batch_size for stage in largest.stages] == [32, 64, 96]
    assert micros(largest) == [(8, 1), (8, 2), (8, 3)]
    small = plan([7, 7, 80], 21, **run, **LARGEST)
    assert [stage.global_batch_size for stage in small.stages] == [4, 12, 20]
    assert micros(small) == [(1, 1), (3, 1), (5, 1)]


def test_the_stages_of_a_step_schedule_have_their_own_micro_batches():
    planned = scheduled(
        "samples: 0:2 20:12 80:6", fleet=fleet_of(2, 1), micro=4, policy="best", **LARGEST
    )
    assert micros(planned) == [(1, 1), (3, 2), (3, 1)]


def test_on_other_ranks_a_stage_has_another_micro_batch():
    planned = plan([6, 6, 80], 12, fleet=fleet_of(2, 1), micro=6, policy="fixed", **LARGEST)
    split = [planned.batch_on(planned.stages[-1], world) for world in (1, 2, 3)]
    assert [(one.micro_batch_size, one.accumulate_grad_batches) for one in split] == [
        (6, 2),
        (6, 1),
        (4, 1),
    ]
    with pytest.raises(UsageError, match="does not divide"):
        planned.batch_on(planned.stages[-1], 5)


def test_a_micro_batch_too_small_for_the_parts_of_a_pipeline_is_refused():
    fleet = fleet_of(1, 2, pipeline=2, pipeline_microbatches=4)
    run = {"fleet": fleet, "policy": "fixed"} | LARGEST
    with pytest.raises(UsageError) as refusal:
        plan([8, 8, 80], 16, micro=2, **run)
    assert refusal.value.keys == ("data.micro_batch_size", "parallel.num_pipeline_microbatches")
    assert micros(plan([8, 8, 80], 16, micro=4, **run)) == [(4, 2), (4, 4)]
    with pytest.raises(UsageError, match="at least 4 samples per micro batch") as refusal:
        plan([6, 6, 80], 12, micro=4, **run)
    assert "parallel.num_pipeline_microbatches" in refusal.value.keys
