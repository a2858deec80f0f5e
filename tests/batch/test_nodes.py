import json
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rampcli.batch.node_policies import Workload, find_node_policy, nemo_schedule
from rampcli.batch.nodes import Clock, Fleet, Work
from rampcli.batch.plan import ParallelSizes
from rampcli.batch.ramp import RampSchedule
from rampcli.batch.throughput import Throughput
from rampcli.errors import UsageError

ORACLE = json.loads((Path(__file__).parent / "oracles" / "nodes.json").read_text(encoding="utf-8"))
CASES = {case["name"]: case for case in ORACLE["cases"]}
READ_FROM_A_STALE_FILE = "stale_json_wins"
WITH_SCHEDULE = [
    name
    for name, case in CASES.items()
    if case["schedule"] is not None and name != READ_FROM_A_STALE_FILE
]
CRASHES = [name for name, case in CASES.items() if case["schedule"] is None]

MICRO = st.sampled_from([1, 2, 3, 4])
PARALLEL = st.builds(
    ParallelSizes,
    tensor=st.sampled_from([1, 2, 4, 8]),
    pipeline=st.sampled_from([1, 2]),
    context=st.sampled_from([1, 2]),
)
FLEETS = st.builds(
    Fleet, num_nodes=st.integers(1, 20), devices=st.sampled_from([1, 2, 3, 4, 8]), parallel=PARALLEL
)
SIZES = st.tuples(
    st.sampled_from([1, 2, 4, 8, 16, 32]), st.integers(1, 12), st.integers(1, 8), st.integers(0, 8)
).map(lambda ramp: [ramp[0] * (ramp[1] + index * ramp[2]) for index in range(ramp[3] + 1)])
"""Batch sizes of a ramp, in ascending order."""
EVEN = Clock(
    throughput=Throughput(points=((1, 1000.0),), basis="a test"),
    sequence_length=100,
    restart_s=0.0,
    restarts_always=True,
)


def fleet_of(num_nodes, devices, **parallel):
    return Fleet(num_nodes=num_nodes, devices=devices, parallel=ParallelSizes(**parallel))


def works_of(sizes, samples=10**9):
    return [Work(global_batch_size=size, samples=samples) for size in sizes]


def chosen(policy, works, *, micro, fleet, clock=EVEN):
    sizes = sorted({work.global_batch_size for work in works})
    workload = Workload(works=works, sizes=sizes, micro_batch_size=micro, fleet=fleet, clock=clock)
    return find_node_policy(policy).choose(workload)


def divides(size, nodes, *, micro, fleet):
    """Returns whether a batch splits into whole micro batches on `nodes` nodes."""
    ranks, rest = divmod(nodes * fleet.devices, fleet.parallel.model_parallel_size)
    return rest == 0 and size % (micro * ranks) == 0


def nemo_by_the_rule(sizes, micro, fleet):
    """Follows the launcher's loop. Where it crashes, a size has no nodes."""
    by_size, most = {sizes[-1]: fleet.num_nodes}, fleet.num_nodes
    for size in sizes[-2::-1]:
        by_size[size] = None
        for n in range(1, most + 1):
            ranks = fleet.devices * n // (fleet.parallel.tensor * fleet.parallel.pipeline)
            if (
                ranks > 0
                and size % (micro * ranks) == 0
                and size % (micro * fleet.devices * n) == 0
            ):
                by_size[size] = n
        most = by_size[size] or most
    return {size: by_size[size] for size in sizes}


def from_case(name):
    given = CASES[name]["input"]
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


@given(size=st.integers(1, 600), micro=MICRO, fleet=FLEETS)
def test_nodes_divide_a_batch_if_every_rank_has_whole_micro_batches(size, micro, fleet):
    expected = [
        n for n in range(1, fleet.num_nodes + 1) if divides(size, n, micro=micro, fleet=fleet)
    ]
    assert fleet.nodes_that_divide(size, micro_batch_size=micro) == expected


@given(fleet=FLEETS)
def test_nodes_hold_the_model_if_their_processes_are_a_multiple_of_its_ranks(fleet):
    held = fleet.nodes_that_hold_the_model()
    for n in range(1, fleet.num_nodes + 1):
        if n in held:
            ranks = fleet.parallel.data_parallel_size(n * fleet.devices)
            assert ranks * fleet.parallel.model_parallel_size == n * fleet.devices
        else:
            with pytest.raises(UsageError, match="model-parallel ranks"):
                fleet.parallel.data_parallel_size(n * fleet.devices)


def test_nodes_are_found_in_a_fleet_of_any_size_without_trying_each():
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
    assert from_case(name) == from_json(CASES[name]["schedule"])


def test_a_schedule_follows_from_the_settings_even_beside_a_stale_file_of_the_launcher(
    tmp_path, monkeypatch
):
    stale = CASES[READ_FROM_A_STALE_FILE]
    (tmp_path / "nodes_scheduler.json").write_text(
        json.dumps(stale["input"]["existing_nodes_scheduler_json"]), encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    assert stale["schedule"] == {"999": 3}
    assert from_case(READ_FROM_A_STALE_FILE) == from_json(CASES["nemo_docs_gpt3_5b"]["schedule"])


def test_nodes_too_few_for_the_model_are_left_out_where_the_launcher_divides_by_zero():
    assert CASES["tp8_pp2_zero_dp"]["error"]["type"] == "ZeroDivisionError"
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


def test_a_size_that_nothing_divides_has_no_nodes_where_the_launcher_crashes():
    case = CASES["no_feasible_max_empty"]
    assert case["error"]["type"] == "ValueError"
    # The launcher never checks the largest size. Its looser condition alone gives the same nodes.
    assert from_case("no_feasible_max_empty") == from_json(
        case["least_strict_schedule_for_comparison"]
    ) | {256: 16}


def test_every_case_of_the_oracle_is_held_to_a_law():
    assert CRASHES == ["tp8_pp2_zero_dp", "no_feasible_max_empty"]
    assert {*WITH_SCHEDULE, *CRASHES, READ_FROM_A_STALE_FILE} == set(CASES)


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
    given, by_size = CASES[name]["input"], CASES[name]["schedule"]
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


@st.composite
def small_runs(draw):
    """A fleet, a few stages on it and a clock, small enough to try every choice of nodes."""
    fleet = fleet_of(
        draw(st.integers(1, 5)), draw(st.sampled_from([1, 2])), tensor=draw(st.sampled_from([1, 2]))
    )
    micro = draw(st.sampled_from([1, 2]))
    sizes = draw(st.lists(st.integers(1, 16).map(lambda size: 2 * size), min_size=1, max_size=4))
    works = [Work(global_batch_size=size, samples=draw(st.integers(1, 4000))) for size in sizes]
    points = draw(st.dictionaries(st.integers(1, 12), st.floats(1, 100), min_size=1, max_size=4))
    clock = Clock(
        throughput=Throughput(points=tuple(sorted(points.items())), basis="a test"),
        sequence_length=draw(st.integers(1, 4)),
        restart_s=draw(st.floats(0, 400)),
        restarts_always=draw(st.booleans()),
    )
    return {"works": works, "micro": micro, "fleet": fleet, "clock": clock}


def total_s(works, nodes, *, micro, fleet, clock):
    """Returns seconds with restarts, and node-seconds, of the stages that have nodes."""
    run = [(work, n) for work, n in zip(works, nodes, strict=True) if n is not None]
    stage_s = [clock.stage_s(work, n, micro_batch_size=micro, fleet=fleet) for work, n in run]
    changes = sum(clock.restarts_always or one != other for (_, one), (_, other) in pairwise(run))
    return sum(stage_s) + changes * clock.restart_s, sum(
        n * seconds for (_, n), seconds in zip(run, stage_s, strict=True)
    )


def every_choice(works, *, micro, fleet):
    return product(
        *(
            [
                n
                for n in range(1, fleet.num_nodes + 1)
                if divides(w.global_batch_size, n, micro=micro, fleet=fleet)
            ]
            for w in works
        )
    )


@given(run=small_runs())
def test_best_takes_no_longer_than_any_choice_of_nodes_restarts_counted(run):
    works, rest = run["works"], {key: run[key] for key in ("micro", "fleet")}
    nodes = chosen("best", **run)
    feasible = [
        bool(run["fleet"].nodes_that_divide(work.global_batch_size, micro_batch_size=run["micro"]))
        for work in works
    ]
    assert [n is not None for n in nodes] == feasible
    assert all(
        n is None or divides(work.global_batch_size, n, **rest)
        for work, n in zip(works, nodes, strict=True)
    )
    possible = [work for work, fits in zip(works, feasible, strict=True) if fits]
    least = min(
        total_s(possible, choice, **rest, clock=run["clock"])[0]
        for choice in every_choice(possible, **rest)
    )
    assert total_s(works, nodes, **rest, clock=run["clock"])[0] <= least * (1 + 1e-9)


@st.composite
def exactly_timed_runs(draw):
    """Runs whose seconds are dyadic fractions: float sums and ties are exact."""
    fleet = fleet_of(4, draw(st.sampled_from([1, 2])))
    works = [
        Work(
            global_batch_size=draw(st.sampled_from([1, 2, 4, 8])), samples=draw(st.integers(1, 16))
        )
        for _ in range(draw(st.integers(1, 5)))
    ]
    rates = draw(st.lists(st.sampled_from([0.25, 0.5, 1.0, 2.0]), min_size=4, max_size=4))
    return {
        "works": works,
        "micro": 1,
        "fleet": fleet,
        "clock": Clock(
            throughput=Throughput(
                points=tuple(zip((1, 2, 4, 8), rates, strict=True)), basis="a test"
            ),
            sequence_length=1,
            restart_s=draw(st.integers(0, 32)) / 8,
            restarts_always=draw(st.booleans()),
        ),
    }


@given(run=exactly_timed_runs())
def test_best_takes_the_fewest_node_seconds_of_the_fastest_choices(run):
    rest = {key: run[key] for key in ("micro", "fleet")}
    nodes = chosen("best", **run)
    possible = [work for work, n in zip(run["works"], nodes, strict=True) if n is not None]
    if possible:
        costs = [
            total_s(possible, choice, **rest, clock=run["clock"])
            for choice in every_choice(possible, **rest)
        ]
        assert total_s(run["works"], nodes, **rest, clock=run["clock"]) == min(costs)


def test_best_leaves_nodes_free_that_make_a_stage_no_faster():
    same_rate_of_all = Throughput(points=((1, 10.0), (2, 20.0), (4, 40.0)), basis="a test")
    clock = replace(EVEN, throughput=same_rate_of_all)
    for samples in (64, None):
        assert chosen(
            "best", works_of([4], samples=samples), micro=1, fleet=fleet_of(4, 1), clock=clock
        ) == [1]


@pytest.mark.parametrize(
    ("restart_s", "sizes", "with_more_nodes"),
    [(1.0, [4, 1], [2, 1]), (0.5, [1, 4, 1], [1, 2, 1]), (0.5, [1, 4, 1, 1], [1, 2, 1, 1])],
)
def test_best_keeps_fewer_nodes_if_restarts_cost_just_what_more_would_save(
    restart_s, sizes, with_more_nodes
):
    throughput = Throughput(points=((1, 1.0), (2, 2.0), (4, 3.0)), basis="a test")
    clock = Clock(
        throughput=throughput, sequence_length=1, restart_s=restart_s, restarts_always=False
    )
    run = {
        "works": [Work(global_batch_size=size, samples=12) for size in sizes],
        "micro": 1,
        "fleet": fleet_of(2, 1),
        "clock": clock,
    }
    fewer = [1] * len(sizes)
    assert total_s(nodes=with_more_nodes, **run)[0] == total_s(nodes=fewer, **run)[0]
    assert total_s(nodes=with_more_nodes, **run)[1] > total_s(nodes=fewer, **run)[1]
    assert chosen("best", **run) == fewer


@st.composite
def runs_that_nemo_has_nodes_for(draw):
    """Batch sizes that are whole on every node, and a number of nodes that divides the largest."""
    micro, devices = draw(MICRO), draw(st.sampled_from([1, 2, 4, 8]))
    start, increment, increments = (
        draw(st.integers(1, 12)),
        draw(st.integers(1, 8)),
        draw(st.integers(0, 8)),
    )
    per_node = [start + index * increment for index in range(increments + 1)]
    num_nodes = draw(
        st.sampled_from([n for n in range(1, per_node[-1] + 1) if per_node[-1] % n == 0])
    )
    tensor = draw(st.sampled_from([ranks for ranks in (1, 2, 4, 8) if devices % ranks == 0]))
    samples = draw(st.integers(1, 10**7))
    return {
        "works": works_of([micro * devices * size for size in per_node], samples),
        "micro": micro,
        "fleet": fleet_of(num_nodes, devices, tensor=tensor),
    }


@given(run=runs_that_nemo_has_nodes_for(), restart_s=st.floats(0, 10**5), always=st.booleans())
def test_best_is_never_slower_than_nemo_where_nemo_has_an_answer(run, restart_s, always):
    clock = replace(EVEN, restart_s=restart_s, restarts_always=always)
    nemo, best = chosen("nemo", **run), chosen("best", **run, clock=clock)
    assert None not in nemo
    assert total_s(nodes=best, **run, clock=clock)[0] <= total_s(nodes=nemo, **run, clock=clock)[
        0
    ] * (1 + 1e-9)


def test_best_leaves_an_awkward_stage_small_and_the_others_as_large_as_they_can_be():
    sizes, fleet = [256, 512, 544, 1024], fleet_of(16, 8)  # 544 = 17 x 32
    assert chosen("nemo", works_of(sizes), micro=4, fleet=fleet) == [1, 1, 1, 16]
    assert chosen("best", works_of(sizes), micro=4, fleet=fleet) == [8, 16, 1, 16]


def test_best_counts_tensor_parallelism_once_where_nemo_counts_it_twice():
    sizes, fleet = [8, 16, 24, 32, 40, 48, 56, 64], fleet_of(16, 8, tensor=8)
    assert chosen("nemo", works_of(sizes), micro=1, fleet=fleet) == [1, 2, 3, 4, 5, 6, 7, 16]
    assert chosen("best", works_of(sizes), micro=1, fleet=fleet) == [8, 16, 12, 16, 10, 16, 14, 16]


@given(run=small_runs(), size=st.integers(1, 8).map(lambda size: 4 * size))
def test_best_gives_an_open_last_stage_the_fewest_of_the_nodes_on_which_it_is_fastest(run, size):
    last = Work(global_batch_size=size, samples=None)
    rest = {"micro_batch_size": run["micro"], "fleet": run["fleet"]}
    feasible = run["fleet"].nodes_that_divide(size, micro_batch_size=run["micro"])
    assume(feasible)
    [*before, nodes] = chosen("best", **(run | {"works": [*run["works"], last]}))
    seconds = {n: run["clock"].stage_s(last, n, **rest) for n in feasible}
    assert nodes == min(feasible, key=lambda n: (seconds[n], n))
    possible = [work for work, n in zip(run["works"], before, strict=True) if n is not None]

    def with_the_last(works, choice):
        run_to_the_last = [*works, Work(global_batch_size=size, samples=0)]
        return total_s(
            run_to_the_last,
            [*choice, nodes],
            micro=run["micro"],
            fleet=run["fleet"],
            clock=run["clock"],
        )[0]

    choices = every_choice(possible, micro=run["micro"], fleet=run["fleet"])
    assert with_the_last(run["works"], before) <= min(
        with_the_last(possible, choice) for choice in choices
    ) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("restart_s", "nodes"), [(0.0, [8, 16, 10]), (1e3, [8, 8, 10]), (1e12, [2, 2, 2])]
)
def test_the_dearer_a_restart_the_fewer_changes_of_nodes_are_worth_it(restart_s, nodes):
    works = [
        Work(global_batch_size=256, samples=10**7),
        Work(global_batch_size=512, samples=10**6),
        Work(global_batch_size=320, samples=10**7),
    ]
    clock = replace(EVEN, restart_s=restart_s, restarts_always=False)
    assert chosen("best", works, micro=4, fleet=fleet_of(16, 8), clock=clock) == nodes


def test_the_price_of_a_restart_does_not_matter_if_every_boundary_restarts():
    sizes, fleet = [256, 512, 320], fleet_of(16, 8)
    for restart_s in (0.0, 1e3, 1e12):
        clock = replace(EVEN, restart_s=restart_s, restarts_always=True)
        assert chosen("best", works_of(sizes), micro=4, fleet=fleet, clock=clock) == [8, 16, 10]


@given(nodes=st.lists(st.integers(1, 3), min_size=1, max_size=8))
def test_clocks_count_restarts_at_every_boundary_or_only_if_the_nodes_change(nodes):
    changes = sum(one != other for one, other in pairwise(nodes))
    assert replace(EVEN, restarts_always=True).restarts(nodes) == len(nodes) - 1
    assert replace(EVEN, restarts_always=False).restarts(nodes) == changes


@given(
    nodes=st.integers(1, 8),
    accumulate=st.integers(1, 8),
    micro=MICRO,
    samples=st.integers(1, 10**9),
)
def test_a_stage_takes_the_seconds_of_its_samples_at_the_rate_of_its_micro_batches(
    nodes, accumulate, micro, samples
):
    fleet = fleet_of(8, 4, tensor=2)
    clock = replace(EVEN, throughput=Throughput(points=((1, 900.0), (8, 1200.0)), basis="a test"))
    work = Work(global_batch_size=micro * nodes * 2 * accumulate, samples=samples)
    rate = nodes * 4 * clock.throughput.tokens_per_s_per_gpu(accumulate)
    assert clock.stage_s(work, nodes, micro_batch_size=micro, fleet=fleet) == pytest.approx(
        samples * 100 / rate
    )
    endless = replace(work, samples=None)
    assert clock.stage_s(endless, nodes, micro_batch_size=micro, fleet=fleet) == pytest.approx(
        100 / rate
    )


def test_an_unknown_policy_is_refused_with_those_there_are():
    with pytest.raises(UsageError) as refusal:
        chosen("nemesis", works_of([8]), micro=1, fleet=fleet_of(1, 1))
    assert refusal.value.keys == ("rampup.node_policy",)
    assert refusal.value.remedy == "one of nemo, best, fixed"


@pytest.mark.parametrize(
    ("num_nodes", "devices", "key"),
    [(0, 8, "trainer.num_nodes"), (-1, 8, "trainer.num_nodes"), (2, 0, "trainer.devices")],
)
def test_a_fleet_without_processes_is_refused(num_nodes, devices, key):
    with pytest.raises(UsageError) as refusal:
        fleet_of(num_nodes, devices)
    assert refusal.value.keys == (key,)
