import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles import NODE_CASES
from plans import FLEETS, MICRO, chosen, divides, fleet_of, nemo_by_the_rule, works_of
from rampcli.batch.node_policies import nemo_schedule
from rampcli.batch.ramp import RampSchedule

READ_FROM_A_STALE_FILE = "stale_json_wins"
WITH_SCHEDULE = [
    name
    for name, case in NODE_CASES.items()
    if case["schedule"] is not None and name != READ_FROM_A_STALE_FILE
]
CRASHES = [name for name, case in NODE_CASES.items() if case["schedule"] is None]

SIZES = st.tuples(
    st.sampled_from([1, 2, 4, 8, 16, 32]), st.integers(1, 12), st.integers(1, 8), st.integers(0, 8)
).map(lambda ramp: [ramp[0] * (ramp[1] + index * ramp[2]) for index in range(ramp[3] + 1)])
"""Batch sizes of a ramp, in ascending order."""


def from_case(name):
    given = NODE_CASES[name]["input"]
    fleet = fleet_of(
        given["num_nodes"],
        given["gpus_per_node"],
        tensor=given["tensor_model_parallel_size"],
        pipeline=given["pipeline_model_parallel_size"],
    )
    ramp = RampSchedule.from_rampup(
        given["rampup_batch_size"], global_batch_size=given["global_batch_size"]
    )
    return nemo_schedule(
        ramp.scheduled_sizes(), micro_batch_size=given["micro_batch_size"], fleet=fleet
    )


def from_json(schedule):
    return {int(size): nodes for size, nodes in schedule.items()}


def test_nodes_in_a_fleet_of_any_size_are_found_without_trying_each():
    fleet = fleet_of(10**30, 8)
    assert fleet.nodes_that_divide(64, micro_batch_size=1) == [1, 2, 4, 8]
    assert nemo_schedule([64, 128, 192], micro_batch_size=1, fleet=fleet) == {
        64: 8,
        128: 16,
        192: 10**30,
    }


@given(sizes=SIZES, micro=MICRO, fleet=FLEETS)
def test_nemo_gives_each_size_the_most_nodes_that_divide_it_and_no_more_than_the_size_above(
    sizes, micro, fleet
):
    schedule = nemo_schedule(sizes, micro_batch_size=micro, fleet=fleet)
    assert list(schedule.items()) == list(nemo_by_the_rule(sizes, micro, fleet).items())
    given_nodes = [nodes for nodes in schedule.values() if nodes is not None]
    assert given_nodes == sorted(given_nodes)


@pytest.mark.parametrize("name", WITH_SCHEDULE)
def test_nemo_answers_what_the_launcher_answers(name):
    assert from_case(name) == from_json(NODE_CASES[name]["schedule"])


def test_a_schedule_follows_from_the_settings_even_beside_a_stale_file_of_the_launcher(tmp_path):
    stale = NODE_CASES[READ_FROM_A_STALE_FILE]
    (tmp_path / "nodes_scheduler.json").write_text(
        json.dumps(stale["input"]["existing_nodes_scheduler_json"]), encoding="utf-8"
    )
    assert stale["schedule"] == {"999": 3}
    assert from_case(READ_FROM_A_STALE_FILE) == from_json(
        NODE_CASES["nemo_docs_gpt3_5b"]["schedule"]
    )


def test_nodes_too_few_for_the_model_are_skipped_although_the_launcher_divides_by_zero():
    assert NODE_CASES["tp8_pp2_zero_dp"]["error"]["type"] == "ZeroDivisionError"
    assert from_case("tp8_pp2_zero_dp") == {
        64: 8,
        128: 8,
        192: 8,
        256: 8,
        320: 10,
        384: 12,
        448: 14,
        512: 16,
    }


def test_a_size_that_no_nodes_divide_has_no_nodes_although_the_launcher_crashes():
    case = NODE_CASES["no_feasible_max_empty"]
    assert case["error"]["type"] == "ValueError"
    # The launcher never checks the largest size. Its looser condition alone gives the same nodes.
    assert from_case("no_feasible_max_empty") == from_json(
        case["least_strict_schedule_for_comparison"]
    ) | {256: 16}


def test_every_case_of_the_oracle_is_tested():
    assert CRASHES == ["tp8_pp2_zero_dp", "no_feasible_max_empty"]
    assert {*WITH_SCHEDULE, *CRASHES, READ_FROM_A_STALE_FILE} == set(NODE_CASES)


@given(sizes=SIZES, micro=MICRO, fleet=FLEETS)
def test_under_nemo_a_stage_that_the_launchers_nodes_do_not_divide_has_no_nodes(
    sizes, micro, fleet
):
    schedule = nemo_by_the_rule(sizes, micro, fleet)
    for size, nodes in zip(
        sizes, chosen("nemo", works_of(sizes), micro=micro, fleet=fleet), strict=True
    ):
        whole = schedule[size] is not None and divides(
            size, schedule[size], micro=micro, fleet=fleet
        )
        assert nodes == (schedule[size] if whole else None)


@pytest.mark.parametrize("name", ["final_not_checked", "coprime_stage"])
def test_the_largest_size_has_no_nodes_if_it_does_not_divide_although_the_launcher_never_checks(
    name,
):
    given, by_size = NODE_CASES[name]["input"], NODE_CASES[name]["schedule"]
    fleet = fleet_of(given["num_nodes"], given["gpus_per_node"])
    nodes = chosen(
        "nemo", works_of(map(int, by_size)), micro=given["micro_batch_size"], fleet=fleet
    )
    assert nodes == [*list(by_size.values())[:-1], None]


@given(sizes=SIZES, micro=MICRO, fleet=FLEETS)
def test_fixed_gives_every_size_all_the_nodes_or_none(sizes, micro, fleet):
    expected = [
        fleet.num_nodes if divides(size, fleet.num_nodes, micro=micro, fleet=fleet) else None
        for size in sizes
    ]
    assert chosen("fixed", works_of(sizes), micro=micro, fleet=fleet) == expected
