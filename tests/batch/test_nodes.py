import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.batch.nodes import Fleet, NodeSchedule
from rampcli.batch.plan import ParallelSizes
from rampcli.batch.ramp import RampSchedule
from rampcli.errors import UsageError

ORACLE = json.loads((Path(__file__).parent / "oracles" / "nodes.json").read_text(encoding="utf-8"))
CASES = {case["name"]: case for case in ORACLE["cases"]}
WITH_SCHEDULE = [name for name, case in CASES.items() if case["schedule"] is not None]


@st.composite
def ramps(draw):
    unit = draw(st.sampled_from([1, 2, 4, 8, 16, 32]))
    start, increment, increments = draw(st.integers(1, 12)), draw(st.integers(1, 8)), draw(st.integers(0, 8))
    return [unit * (start + index * increment) for index in range(increments + 1)]


FLEETS = st.builds(
    Fleet,
    num_nodes=st.integers(1, 20),
    devices=st.sampled_from([1, 2, 4, 8]),
    parallel=st.builds(
        ParallelSizes, tensor=st.sampled_from([1, 2, 4, 8]), pipeline=st.sampled_from([1, 2]), context=st.sampled_from([1, 2])
    ),
)
MICRO = st.sampled_from([1, 2, 3, 4])


def nodes_by_the_rule(sizes, micro, fleet):
    nodes = [fleet.num_nodes]
    for batch in sizes[-2::-1]:
        largest = None
        for n in range(1, nodes[0] + 1):
            ranks = fleet.devices * n // (fleet.parallel.tensor * fleet.parallel.pipeline)
            if ranks > 0 and batch % (micro * ranks) == 0 and batch % (micro * fleet.devices * n) == 0:
                largest = n
        if largest is None:
            return None
        nodes.insert(0, largest)
    return dict(zip(sizes, nodes, strict=True))


def from_case(name):
    given = CASES[name]["input"]
    fleet = Fleet(
        num_nodes=given["num_nodes"],
        devices=given["gpus_per_node"],
        parallel=ParallelSizes(tensor=given["tensor_model_parallel_size"], pipeline=given["pipeline_model_parallel_size"]),
    )
    ramp = RampSchedule.from_rampup(given["rampup_batch_size"], global_batch_size=given["global_batch_size"])
    return NodeSchedule.for_ramp(ramp.nominal_sizes(), policy="nemo", micro_batch_size=given["micro_batch_size"], fleet=fleet)


@given(sizes=ramps(), micro=MICRO, fleet=FLEETS)
def test_nemo_gives_each_size_the_most_nodes_that_divide_it_and_no_more_than_the_size_above(sizes, micro, fleet):
    expected = nodes_by_the_rule(sizes, micro, fleet)
    if expected is None:
        with pytest.raises(UsageError, match="divides on no number of nodes"):
            NodeSchedule.for_ramp(sizes, policy="nemo", micro_batch_size=micro, fleet=fleet)
        return
    schedule = NodeSchedule.for_ramp(sizes, policy="nemo", micro_batch_size=micro, fleet=fleet)
    assert list(schedule.nodes_by_batch_size.items()) == list(expected.items())
    assert [schedule.nodes_for(size) for size in sizes] == sorted(expected.values())


@pytest.mark.parametrize("name", WITH_SCHEDULE)
def test_nemo_answers_what_the_launcher_answers(name):
    assert {str(size): nodes for size, nodes in from_case(name).nodes_by_batch_size.items()} == CASES[name]["schedule"]


def test_where_the_launcher_divides_by_zero_too_few_nodes_for_the_model_are_passed_over():
    assert CASES["tp8_pp2_zero_dp"]["error"]["type"] == "ZeroDivisionError"
    assert from_case("tp8_pp2_zero_dp").nodes_by_batch_size == {64: 8, 128: 8, 192: 8, 256: 8, 320: 10, 384: 12, 448: 14, 512: 16}


def test_where_the_launcher_crashes_a_size_that_no_number_of_nodes_divides_is_named():
    assert CASES["no_feasible_max_empty"]["error"]["type"] == "ValueError"
    with pytest.raises(UsageError) as refusal:
        from_case("no_feasible_max_empty")
    assert "batch size 240 of the ramp divides on no number of nodes from 1 to 16 with 8 processes each" in refusal.value.message
    assert refusal.value.keys[0] == "model.rampup_batch_size"


@given(sizes=ramps(), micro=MICRO, fleet=FLEETS)
def test_fixed_gives_every_size_all_the_nodes(sizes, micro, fleet):
    schedule = NodeSchedule.for_ramp(sizes, policy="fixed", micro_batch_size=micro, fleet=fleet)
    assert [schedule.nodes_for(size) for size in sizes] == [fleet.num_nodes] * len(sizes)


def test_an_unknown_policy_is_refused_with_those_there_are():
    with pytest.raises(UsageError) as refusal:
        NodeSchedule.for_ramp([8], policy="nemesis", micro_batch_size=1, fleet=Fleet(num_nodes=1, devices=1, parallel=ParallelSizes()))
    assert refusal.value.keys == ("rampup.node_policy",)
    assert refusal.value.remedy == "one of nemo, fixed"


@pytest.mark.parametrize(
    ("num_nodes", "devices", "key"), [(0, 8, "trainer.num_nodes"), (-1, 8, "trainer.num_nodes"), (2, 0, "trainer.devices")]
)
def test_a_fleet_without_processes_is_refused(num_nodes, devices, key):
    with pytest.raises(UsageError) as refusal:
        Fleet(num_nodes=num_nodes, devices=devices, parallel=ParallelSizes())
    assert refusal.value.keys == (key,)


@given(fleet=FLEETS, num_nodes=st.integers(1, 20))
def test_the_model_parallel_ranks_of_a_world_are_its_processes_over_the_data_parallel_ones(fleet, num_nodes):
    world, model = num_nodes * fleet.devices, fleet.parallel.model_parallel_size
    if world % model:
        with pytest.raises(UsageError, match="model-parallel ranks"):
            fleet.parallel.data_parallel_size(world)
    else:
        assert fleet.parallel.data_parallel_size(world) == world // model
