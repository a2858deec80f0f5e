from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles import RAMPS
from rampcli.batch.loading import count_readers, reader_of_each_host, samples_to_load
from rampcli.errors import UsageError
from rampcli.words.maxtext import PER_DEVICE, to_samples
from remedies import offers

SIZES = RAMPS["maxtext_batch_sizes"]


def is_truncated(case):
    """Returns whether MaxText truncates the batch."""
    return (case["num_devices"] * Fraction(str(case["per_device_batch_size"]))).denominator > 1


def trained(case):
    """Returns the samples that a pass of a case trains on."""
    return to_samples(PER_DEVICE, case["per_device_batch_size"], num_devices=case["num_devices"])


def loaded(global_batch_size, *, num_devices, passes=1, factor=None):
    return samples_to_load(
        global_batch_size, num_devices=num_devices, passes=passes, expansion_factor=factor
    )


@pytest.mark.parametrize("case", [case for case in SIZES if not is_truncated(case)], ids=str)
def test_batches_to_load_and_to_train_equal_maxtexts(case):
    theirs, passes = case["types_py"], case["gradient_accumulation_steps"]
    train = trained(case) * passes
    assert train == theirs["global_batch_size_to_train_on"]
    factor = Fraction(str(case["expansion_factor_real_data"]))
    load = loaded(train, num_devices=case["num_devices"], passes=passes, factor=factor)
    assert load == theirs["global_batch_size_to_load"]


@pytest.mark.parametrize(
    ("per_device", "samples", "truncated"), [(0.25, "1.5", 1), (1.3, "10.4", 10)]
)
def test_a_batch_that_maxtext_truncates_is_refused(per_device, samples, truncated):
    [case] = [
        case for case in SIZES if is_truncated(case) and case["per_device_batch_size"] == per_device
    ]
    assert case["types_py"]["global_batch_size_to_train_on"] == truncated
    with pytest.raises(UsageError) as refusal:
        trained(case)
    assert refusal.value.message == (
        f"per_device_batch_size={per_device} x {case['num_devices']} devices"
        f" is {samples} samples, which is not whole"
    )
    assert refusal.value.keys == ("per_device_batch_size", "trainer.num_nodes", "trainer.devices")


def test_every_size_of_the_oracle_is_tested():
    assert (len(SIZES), sum(map(is_truncated, SIZES))) == (7, 2)


@given(
    per_pass=st.integers(1, 1024),
    factor=st.none()
    | st.sampled_from(
        [Fraction(1, 4), Fraction(1, 2), Fraction(1), Fraction(3, 2), Fraction(2), Fraction(8)]
    ),
    num_devices=st.integers(1, 64),
    passes=st.integers(1, 8),
)
def test_a_step_loads_its_samples_times_the_expansion_and_at_least_one_per_device(
    per_pass, factor, num_devices, passes
):
    load = Fraction(max(per_pass, num_devices)) * (factor or 1)

    def step():
        return loaded(per_pass * passes, num_devices=num_devices, passes=passes, factor=factor)

    if load.denominator > 1:
        with pytest.raises(UsageError) as refusal:
            step()
        assert refusal.value.keys[1:] == ("trainer.num_nodes", "trainer.devices")
    else:
        assert step() == load * passes


def test_an_expansion_that_would_load_part_of_a_sample_is_refused():
    with pytest.raises(UsageError) as refusal:
        loaded(7, num_devices=7, factor=Fraction(1, 2))
    assert (
        refusal.value.message
        == "data.expansion_factor_real_data=0.5 x 7 samples is 3.5, which is not whole"
    )
    assert refusal.value.remedy == "data.expansion_factor_real_data=1"
    assert loaded(7, num_devices=7, factor=Fraction(1)) == 7


@given(
    num_nodes=st.integers(1, 64),
    factor=st.none() | st.fractions(Fraction(1, 4), 16, max_denominator=4),
)
def test_an_expansion_must_divide_the_hosts_or_the_largest_factor_that_does_is_suggested(
    num_nodes, factor
):
    if factor is None or factor <= 1:
        assert count_readers(num_nodes, factor) == num_nodes
    elif (num_nodes / factor).denominator == 1:
        assert count_readers(num_nodes, factor) * factor == num_nodes
    else:
        with pytest.raises(UsageError) as refusal:
            count_readers(num_nodes, factor)
        assert refusal.value.keys == ("data.expansion_factor_real_data", "trainer.num_nodes")
        [[offer]] = [offer.values() for offer in offers(refusal.value)]
        assert offer == max(other for other in range(1, int(factor) + 1) if num_nodes % other == 0)
        assert count_readers(num_nodes, Fraction(offer)) * offer == num_nodes


FACTORS = st.none() | st.sampled_from([-1.0, 0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 1.1])


@given(num_nodes=st.integers(1, 64), factor=FACTORS)
def test_every_host_has_a_reader_and_readers_read_for_themselves_and_neighbours(num_nodes, factor):
    fewer = Fraction(str(factor)) if factor is not None and factor > 1 else Fraction(1)
    if (num_nodes / fewer).denominator > 1:
        with pytest.raises(UsageError) as refusal:
            reader_of_each_host(num_nodes, factor)
        assert refusal.value.keys == ("data.expansion_factor_real_data", "trainer.num_nodes")
        return
    readers = reader_of_each_host(num_nodes, factor)
    assert len(readers) == num_nodes
    assert all(readers[reader] == reader for reader in readers)
    assert readers == sorted(readers)
    reading = sorted(set(readers))
    assert len(reading) == num_nodes / fewer
    served = [readers.count(reader) for reader in reading]
    assert max(served) - min(served) <= 1


@pytest.mark.parametrize("factor", [None, -1, 0.5, 1])
def test_without_an_expansion_above_one_every_host_reads(factor):
    assert reader_of_each_host(5, factor) == [0, 1, 2, 3, 4]


def test_one_host_of_a_group_reads():
    assert reader_of_each_host(4, 4) == [0, 0, 0, 0]
    assert reader_of_each_host(4, 2.0) == [0, 0, 2, 2]
    assert reader_of_each_host(3, 1.5) == [0, 0, 2]
    with pytest.raises(UsageError, match=r"trainer\.num_nodes=3 is not a multiple of 2"):
        reader_of_each_host(3, 2)
