"""Fleets of nodes for tests, and the nodes that policies choose on them."""

from hypothesis import strategies as st

from rampcli.batch.micro_batch import MicroBatchRule
from rampcli.batch.node_policies import Workload, find_node_policy
from rampcli.batch.nodes import Clock, Fleet, Work
from rampcli.batch.plan import ParallelSizes
from rampcli.batch.throughput import Throughput

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
EVEN = Clock(
    throughput=Throughput.constant(1000.0, basis="a test"),
    sequence_length=100,
    restart_s=0.0,
    restarts_always=True,
)


def fleet_of(num_nodes, devices, **parallel):
    return Fleet(num_nodes=num_nodes, devices=devices, parallel=ParallelSizes(**parallel))


def works_of(sizes, samples=10**9):
    return [Work(global_batch_size=size, samples=samples) for size in sizes]


def chosen(policy, works, *, micro, fleet, clock=EVEN, varies=False):
    sizes = sorted({work.global_batch_size for work in works})
    workload = Workload(
        works=works,
        sizes=sizes,
        micro_batch=MicroBatchRule(size=micro, varies=varies),
        fleet=fleet,
        clock=clock,
    )
    return find_node_policy(policy).choose(workload)


def divides(size, nodes, *, micro, fleet):
    """Returns whether a batch splits into whole micro batches on `nodes` nodes."""
    ranks, rest = divmod(nodes * fleet.devices, fleet.parallel.model_parallel_size)
    return rest == 0 and size % (micro * ranks) == 0
