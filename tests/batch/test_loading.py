from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles import RAMPS
from rampcli.batch.loading import LoadedBatch, count_readers, reader_of_each_host
from rampcli.errors import UsageError
from remedies import offers

SIZES = RAMPS["maxtext_batch_sizes"]


def is_truncated(case):
    """Returns whether MaxText truncates the batch."""
    return (case["num_devices"] * Fraction(str(case["per_device_batch_size"]))).denominator > 1


def loaded(case):
    factor = case["expansion_factor_real_data"]
    return LoadedBatch.of(
        per_device_batch_size=Fraction(str(case["per_device_batch_size"])),
        expansion_factor=None if factor == -1 else Fraction(str(factor)),
        num_devices=case["num_devices"],
        gradient_accumulation_steps=case["gradient_accumulation_steps"],
    )


@pytest.mark.parametrize("case", [case for case in SIZES if not is_truncated(case)], ids=str)
def test_batches_to_load_and_to_train_equal_maxtexts(case):
    ours, theirs = loaded(case), case["types_py"]
    assert ours.global_batch_to_load == theirs["global_batch_size_to_load"]
    assert ours.global_batch_to_train == theirs["global_batch_size_to_train_on"]


@pytest.mark.parametrize(
    ("per_device", "samples", "truncated"), [(0.25, "1.5", 1), (1.3, "10.4", 10)]
)
def test_a_batch_that_maxtext_truncates_is_refused(per_device, samples, truncated):
    [case] = [
        case for case in SIZES if is_truncated(case) and case["per_device_batch_size"] == per_device
    ]
    assert case["types_py"]["global_batch_size_to_train_on"] == truncated
    with pytest.raises(UsageError) as refusal:
        loaded(case)
    assert refusal.value.message == (
        f"per_device_batch_size={per_device} x {case['num_devices']} devices"
        f" is {samples} samples, which is not whole"
    )
    assert refusal.value.keys == ("per_device_batch_size", "trainer.num_nodes", "trainer.devices")


def test_every_size_of_the_oracle_is_tested():
    assert (len(SIZES), sum(map(is_truncated, SIZES))) == (7, 2)


@given(
    per_rank=st.fractions(Fraction(1, 8), 16, max_denominator=8),
    factor=st.none()
    | st.sampled_from(
        [Fraction(1, 4), Fraction(1, 2), Fraction(1), Fraction(3, 2), Fraction(2), Fraction(8)]
    ),
    num_devices=st.integers(1, 64),
    accumulate=st.integers(1, 8),
)
def test_a_step_loads_its_samples_times_the_expansion_and_at_least_one_per_device(
    per_rank, factor, num_devices, accumulate
):
    train, load = num_devices * per_rank, num_devices * max(per_rank, 1) * (factor or 1)

    def batch():
        return LoadedBatch.of(
            per_device_batch_size=per_rank,
            expansion_factor=factor,
            num_devices=num_devices,
            gradient_accumulation_steps=accumulate,
        )

    if train.denominator > 1 or Fraction(load).denominator > 1:
        with pytest.raises(UsageError) as refusal:
            batch()
        assert refusal.value.keys[1:] == ("trainer.num_nodes", "trainer.devices")
    else:
        assert batch().global_batch_to_train == train * accumulate
        assert batch().global_batch_to_load == load * accumulate


def test_an_expansion_that_would_load_part_of_a_sample_is_refused():
    with pytest.raises(UsageError) as refusal:
        LoadedBatch.of(
            per_device_batch_size=Fraction(1), expansion_factor=Fraction(1, 2), num_devices=7
        )
    assert (
        refusal.value.message
        == "data.expansion_factor_real_data=0.5 x 7 samples is 3.5, which is not whole"
    )
    assert refusal.value.remedy == "data.expansion_factor_real_data=1"
    whole = LoadedBatch.of(
        per_device_batch_size=Fraction(1), expansion_factor=Fraction(1), num_devices=7
    )
    assert whole.global_batch_to_load == 7


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
