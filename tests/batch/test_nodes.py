from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plans import EVEN, FLEETS, MICRO, divides, fleet_of
from rampcli.batch.nodes import Work, count_restarts
from rampcli.batch.throughput import Throughput
from rampcli.errors import UsageError


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
            with pytest.raises(UsageError) as refusal:
                fleet.parallel.data_parallel_size(n * fleet.devices)
            assert refusal.value.keys[:2] == ("trainer.num_nodes", "trainer.devices")


@given(nodes=st.lists(st.integers(1, 3), min_size=1, max_size=8))
def test_processes_restart_at_every_boundary_or_only_if_the_nodes_change(nodes):
    changes = sum(one != other for one, other in pairwise(nodes))
    assert count_restarts(nodes, always=True) == len(nodes) - 1
    assert count_restarts(nodes, always=False) == changes


@given(
    nodes=st.integers(1, 8),
    accumulate=st.integers(1, 8),
    micro=MICRO,
    samples=st.integers(1, 10**9),
)
def test_the_seconds_of_a_stage_are_its_samples_over_the_rate_of_its_micro_batches(
    nodes, accumulate, micro, samples
):
    fleet = fleet_of(8, 4, tensor=2)
    points = {(1, 1): 900.0, (1, 8): 1200.0, (4, 1): 1500.0}
    clock = replace(EVEN, throughput=Throughput(points=points, basis="a test"))
    work = Work(global_batch_size=micro * nodes * 2 * accumulate, samples=samples)
    rate = nodes * 4 * clock.throughput.tokens_per_s_per_gpu(accumulate, micro_batch_size=micro)
    assert clock.stage_s(work, nodes, micro_batch_size=micro, fleet=fleet) == pytest.approx(
        samples * 100 / rate
    )
    endless = replace(work, samples=None)
    assert clock.stage_s(endless, nodes, micro_batch_size=micro, fleet=fleet) == pytest.approx(
        100 / rate
    )


def test_a_stage_takes_longer_by_the_bubble_unless_its_throughput_contains_it():
    fleet = fleet_of(1, 8, pipeline=4, pipeline_microbatches=4)
    work = Work(global_batch_size=16, samples=1600)

    def seconds(fleet, **facts):
        clock = replace(EVEN, throughput=Throughput.constant(1000.0, basis="a test", **facts))
        return clock.stage_s(work, 1, micro_batch_size=4, fleet=fleet)

    busy_s = 1600 * 100 / (8 * 1000)
    assert seconds(fleet) == busy_s
    assert seconds(fleet, has_bubble=False) == pytest.approx(busy_s * (8 + 3) / 8)
