import pytest
from hypothesis import given
from hypothesis import strategies as st

from plans import FLEETS, MICRO, divides
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
