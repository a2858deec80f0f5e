from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from plans import EVEN, MICRO, chosen, divides, fleet_of, works_of
from rampcli.batch.throughput import Clock, Throughput, Work


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
        throughput=Throughput(
            points={(micro, count): rate for count, rate in points.items()}, basis="a test"
        ),
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
def test_best_takes_no_longer_than_any_choice_of_nodes_including_restarts(run):
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
                points={(1, 1 << power): rate for power, rate in enumerate(rates)}, basis="a test"
            ),
            sequence_length=1,
            restart_s=draw(st.integers(0, 32)) / 8,
            restarts_always=draw(st.booleans()),
        ),
    }


@given(run=exactly_timed_runs())
def test_best_uses_the_fewest_node_seconds_among_the_fastest_choices(run):
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
    same_rate_of_all = Throughput(points={(1, 1): 10.0, (1, 2): 20.0, (1, 4): 40.0}, basis="a test")
    clock = replace(EVEN, throughput=same_rate_of_all)
    for samples in (64, None):
        assert chosen(
            "best", works_of([4], samples=samples), micro=1, fleet=fleet_of(4, 1), clock=clock
        ) == [1]


@pytest.mark.parametrize(
    ("restart_s", "sizes", "with_more_nodes"),
    [(1.0, [4, 1], [2, 1]), (0.5, [1, 4, 1], [1, 2, 1]), (0.5, [1, 4, 1, 1], [1, 2, 1, 1])],
)
def test_best_keeps_fewer_nodes_if_restarts_cost_as_much_as_more_nodes_save(
    restart_s, sizes, with_more_nodes
):
    throughput = Throughput(points={(1, 1): 1.0, (1, 2): 2.0, (1, 4): 3.0}, basis="a test")
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
def test_best_is_never_slower_than_nemo_if_nemo_has_nodes(run, restart_s, always):
    clock = replace(EVEN, restart_s=restart_s, restarts_always=always)
    nemo, best = chosen("nemo", **run), chosen("best", **run, clock=clock)
    assert None not in nemo
    assert total_s(nodes=best, **run, clock=clock)[0] <= total_s(nodes=nemo, **run, clock=clock)[
        0
    ] * (1 + 1e-9)


def test_best_gives_few_nodes_to_an_awkward_stage_and_the_most_to_the_others():
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
def test_a_more_expensive_restart_means_fewer_changes_of_nodes(restart_s, nodes):
    works = [
        Work(global_batch_size=256, samples=10**7),
        Work(global_batch_size=512, samples=10**6),
        Work(global_batch_size=320, samples=10**7),
    ]
    clock = replace(EVEN, restart_s=restart_s, restarts_always=False)
    assert chosen("best", works, micro=4, fleet=fleet_of(16, 8), clock=clock) == nodes


def test_the_cost_of_a_restart_does_not_matter_if_every_boundary_restarts():
    sizes, fleet = [256, 512, 320], fleet_of(16, 8)
    for restart_s in (0.0, 1e3, 1e12):
        clock = replace(EVEN, restart_s=restart_s, restarts_always=True)
        assert chosen("best", works_of(sizes), micro=4, fleet=fleet, clock=clock) == [8, 16, 10]
