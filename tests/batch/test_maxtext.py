import json
import re
from fractions import Fraction
from math import gcd, lcm
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.batch.maxtext import (
    ENABLE,
    INCREMENT,
    PER_DEVICE,
    RAMP_SAMPLES,
    START,
    LoadedBatch,
    check_pipeline,
    loading_hosts,
    reading_hosts,
    translate,
)
from rampcli.batch.plan import BatchPlan
from rampcli.batch.ramp import RampSchedule
from rampcli.errors import UsageError

ORACLE = json.loads((Path(__file__).parent / "oracles" / "rampup.json").read_text(encoding="utf-8"))
SIZES = ORACLE["maxtext_batch_sizes"]
RAMPS = {case["name"]: case for case in ORACLE["cases"] if "maxtext" in case}
UNSET = {
    "model.global_batch_size": None,
    "trainer.accumulate_grad_batches": None,
    "parallel.pipeline_parallel_size": 1,
}
GLOBAL, MICRO, RAMP = "model.global_batch_size", "data.micro_batch_size", "model.rampup_batch_size"
PIPELINE = "parallel.num_pipeline_microbatches"


def is_truncated(case):
    """Whether MaxText cuts off a part of a sample."""
    return (case["num_devices"] * Fraction(str(case["per_device_batch_size"]))).denominator > 1


def loaded(case):
    factor = case["expansion_factor_real_data"]
    return LoadedBatch.of(
        per_device_batch_size=Fraction(str(case["per_device_batch_size"])),
        expansion_factor=None if factor == -1 else Fraction(str(factor)),
        num_devices=case["num_devices"],
        gradient_accumulation_steps=case["gradient_accumulation_steps"],
    )


def meaning(words, *, num_devices, model_parallel_size=1, **settings):
    return translate(
        words,
        num_devices=num_devices,
        model_parallel_size=model_parallel_size,
        settings=UNSET | settings,
    )


def offered(remedy, word):
    """The numbers that a remedy offers for a word."""
    assert remedy.startswith(f"{word}=")
    return [
        float(number) for number in re.findall(r"\d+(?:\.\d+)?", remedy.removeprefix(f"{word}="))
    ]


@pytest.mark.parametrize("case", [case for case in SIZES if not is_truncated(case)], ids=str)
def test_batches_to_load_and_to_train_are_those_of_maxtext(case):
    ours, theirs = loaded(case), case["types_py"]
    assert ours.global_batch_to_load == theirs["global_batch_size_to_load"]
    assert ours.global_batch_to_train == theirs["global_batch_size_to_train_on"]
    assert ours.micro_batch_to_train == theirs["micro_batch_size_to_train_on"]


@pytest.mark.parametrize(
    ("per_device", "samples", "truncated"), [(0.25, "1.5", 1), (1.3, "10.4", 10)]
)
def test_where_maxtext_truncates_a_batch_we_refuse_it(per_device, samples, truncated):
    [case] = [
        case for case in SIZES if is_truncated(case) and case["per_device_batch_size"] == per_device
    ]
    assert case["types_py"]["global_batch_size_to_train_on"] == truncated
    with pytest.raises(UsageError) as refusal:
        loaded(case)
    assert refusal.value.message == (
        f"per_device_batch_size={per_device} x {case['num_devices']} devices is {samples} samples, which is not whole"
    )
    assert refusal.value.keys == ("per_device_batch_size", "trainer.num_nodes", "trainer.devices")


def test_every_size_of_the_oracle_is_held_to_a_law():
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
def test_a_step_trains_whole_micro_batches_and_loads_the_expansion_of_them_as_if_at_least_one_were_per_device(
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
        with pytest.raises(UsageError, match="which is not whole"):
            batch()
    else:
        assert batch().micro_batch_to_train == train
        assert batch().global_batch_to_train == train * accumulate
        assert batch().global_batch_to_load == load * accumulate


def test_an_expansion_that_would_load_a_part_of_a_sample_is_refused_and_none_is_offered():
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
def test_with_an_expansion_above_one_so_many_fewer_hosts_read_or_the_largest_factor_that_works_is_offered(
    num_nodes, factor
):
    if factor is None or factor <= 1:
        assert loading_hosts(num_nodes, factor) == num_nodes
    elif (num_nodes / factor).denominator == 1:
        assert loading_hosts(num_nodes, factor) * factor == num_nodes
    else:
        with pytest.raises(UsageError) as refusal:
            loading_hosts(num_nodes, factor)
        assert refusal.value.keys == ("data.expansion_factor_real_data", "trainer.num_nodes")
        [offer] = offered(refusal.value.remedy, "data.expansion_factor_real_data")
        assert offer == max(other for other in range(1, int(factor) + 1) if num_nodes % other == 0)
        assert loading_hosts(num_nodes, Fraction(offer)) * offer == num_nodes


FACTORS = st.none() | st.sampled_from([-1.0, 0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 1.1])


@given(num_nodes=st.integers(1, 64), factor=FACTORS)
def test_every_host_has_one_that_reads_for_it_and_those_read_for_themselves_and_their_neighbours(
    num_nodes, factor
):
    fewer = Fraction(str(factor)) if factor is not None and factor > 1 else Fraction(1)
    if (num_nodes / fewer).denominator > 1:
        with pytest.raises(UsageError) as refusal:
            reading_hosts(num_nodes, factor)
        assert refusal.value.keys == ("data.expansion_factor_real_data", "trainer.num_nodes")
        return
    readers = reading_hosts(num_nodes, factor)
    assert len(readers) == num_nodes
    assert all(readers[reader] == reader for reader in readers)
    assert readers == sorted(readers)
    reading = sorted(set(readers))
    assert len(reading) == num_nodes / fewer
    served = [readers.count(reader) for reader in reading]
    assert max(served) - min(served) <= 1


@pytest.mark.parametrize("factor", [None, -1, 0.5, 1])
def test_without_an_expansion_above_one_every_host_reads(factor):
    assert reading_hosts(5, factor) == [0, 1, 2, 3, 4]


def test_one_host_in_so_many_reads():
    assert reading_hosts(4, 4) == [0, 0, 0, 0]
    assert reading_hosts(4, 2.0) == [0, 0, 2, 2]
    assert reading_hosts(3, 1.5) == [0, 0, 2]
    with pytest.raises(UsageError, match="3 nodes do not divide by it"):
        reading_hosts(3, 2)


@given(
    microbatches=st.integers(1, 24),
    stages=st.integers(2, 8),
    layers=st.integers(1, 32),
    open_=st.booleans(),
)
def test_layers_divide_over_stages_and_microbatches_fill_them_or_what_would_is_offered(
    microbatches, stages, layers, open_
):
    def check(**changed):
        given = {
            "num_pipeline_microbatches": microbatches,
            "stages": stages,
            "num_layers": layers,
        }
        check_pipeline(**(given | ({"num_pipeline_microbatches": None} if open_ else {}) | changed))

    if layers % stages:
        with pytest.raises(UsageError) as refusal:
            check()
        assert refusal.value.keys == ("model.num_layers", "parallel.pipeline_parallel_size")
        [fewer] = offered(refusal.value.remedy, "parallel.pipeline_parallel_size")
        assert layers % fewer == 0
        assert 1 <= fewer < stages
    elif open_:
        check()
    elif microbatches % stages:
        with pytest.raises(
            UsageError, match=r"is not a multiple of parallel\.pipeline_parallel_size"
        ) as refusal:
            check()
        offers = [int(count) for count in offered(refusal.value.remedy, PIPELINE)]
        assert offers
        for count in offers:
            check(num_pipeline_microbatches=count)
            assert abs(count - microbatches) < stages
    else:
        check()


def test_pipeline_microbatches_without_a_pipeline_are_refused():
    with pytest.raises(UsageError, match="there is no pipeline") as refusal:
        check_pipeline(num_pipeline_microbatches=4, stages=1, num_layers=8)
    assert refusal.value.remedy == "parallel.num_pipeline_microbatches=null"
    check_pipeline(num_pipeline_microbatches=None, stages=1, num_layers=8)


@given(
    samples_per_rank=st.integers(1, 64),
    model=st.sampled_from([1, 2, 4, 8]),
    data_ranks=st.integers(1, 64),
    accumulate=st.none() | st.integers(1, 8),
)
def test_a_batch_per_device_means_as_many_samples_as_it_does_there(
    samples_per_rank, model, data_ranks, accumulate
):
    devices = model * data_ranks
    per_device = samples_per_rank / model
    meant = meaning(
        {PER_DEVICE: per_device},
        num_devices=devices,
        model_parallel_size=model,
        **{"trainer.accumulate_grad_batches": accumulate},
    )
    assert set(meant) == {GLOBAL, MICRO}
    theirs = LoadedBatch.of(
        per_device_batch_size=Fraction(str(per_device)),
        expansion_factor=None,
        num_devices=devices,
        gradient_accumulation_steps=accumulate or 1,
    )
    assert meant[GLOBAL] == theirs.global_batch_to_train
    plan = BatchPlan.divide(
        meant[GLOBAL], micro_batch_size=meant[MICRO], data_parallel_size=data_ranks
    )
    assert plan.accumulate_grad_batches == (accumulate or 1)


def test_a_tenth_means_a_tenth_and_not_the_nearest_binary_fraction():
    assert 3 * 0.1 * 10 != 3
    assert meaning({PER_DEVICE: 0.1}, num_devices=30, model_parallel_size=10)[GLOBAL] == 3


@given(
    per_device=st.integers(1, 99_999).map(lambda thousandths: thousandths / 1000),
    devices=st.sampled_from([1, 2, 4, 8]),
)
def test_a_batch_per_device_that_is_not_whole_is_refused_with_the_nearest_that_are(
    per_device, devices
):
    samples = devices * Fraction(str(per_device))
    if samples.denominator == 1:
        assert (
            meaning({PER_DEVICE: per_device}, num_devices=devices, model_parallel_size=devices)[
                GLOBAL
            ]
            == samples
        )
        return
    with pytest.raises(UsageError) as refusal:
        meaning({PER_DEVICE: per_device}, num_devices=devices, model_parallel_size=devices)
    assert refusal.value.keys == (PER_DEVICE, "trainer.num_nodes", "trainer.devices")
    nearest = [
        meaning({PER_DEVICE: offer}, num_devices=devices, model_parallel_size=devices)[GLOBAL]
        for offer in offered(refusal.value.remedy, PER_DEVICE)
    ]
    below = max(1, int(samples))
    assert nearest == [below, below + 1]


@given(
    per_device=st.integers(1, 999).map(lambda eighths: eighths / 8),
    model=st.sampled_from([1, 2, 4]),
    data_ranks=st.sampled_from([8, 16]),
)
def test_a_batch_per_device_that_is_not_whole_on_a_rank_is_refused_with_the_nearest_that_are(
    per_device, model, data_ranks
):
    devices = model * data_ranks
    if (per_device * model).is_integer():
        assert (
            meaning({PER_DEVICE: per_device}, num_devices=devices, model_parallel_size=model)[MICRO]
            == per_device * model
        )
        return
    with pytest.raises(
        UsageError, match="samples per data-parallel rank, which is not whole"
    ) as refusal:
        meaning({PER_DEVICE: per_device}, num_devices=devices, model_parallel_size=model)
    nearest = [
        meaning({PER_DEVICE: offer}, num_devices=devices, model_parallel_size=model)[MICRO]
        for offer in offered(refusal.value.remedy, PER_DEVICE)
    ]
    below = max(1, int(per_device * model))
    assert nearest == [below, below + 1]


@pytest.mark.parametrize("per_device", [0, 0.0, -1, -0.5])
def test_a_batch_per_device_that_is_not_above_zero_is_refused(per_device):
    with pytest.raises(UsageError, match="is not above zero"):
        meaning({PER_DEVICE: per_device}, num_devices=8)


def test_with_a_pipeline_maxtexts_default_is_a_microbatch_per_stage():
    meant = meaning(
        {PER_DEVICE: 1},
        num_devices=8,
        model_parallel_size=4,
        **{"parallel.pipeline_parallel_size": 4},
    )
    assert meant == {GLOBAL: 8, MICRO: 4, PIPELINE: 4}


def ramp_meant(words, **machine):
    meant = meaning(words, **machine)
    return RampSchedule.from_rampup(
        meant[RAMP], global_batch_size=meant[GLOBAL], semantics=meant["rampup.semantics"]
    )


def words_of(case):
    given = case["maxtext"]["per_device"]
    return {
        PER_DEVICE: given["end"],
        ENABLE: True,
        START: given["start"],
        INCREMENT: given["increment"],
        RAMP_SAMPLES: case["input"]["rampup_batch_size"][2],
    }


@pytest.mark.parametrize(
    "name", [name for name, case in RAMPS.items() if case["maxtext"]["error"] is None]
)
def test_a_ramp_in_maxtexts_words_runs_maxtexts_stages(name):
    case = RAMPS[name]
    per_device = case["maxtext"]["per_device"]
    devices = per_device["num_devices"]
    model = lcm(*(Fraction(str(per_device[word])).denominator for word in ("start", "increment")))
    meant = meaning(words_of(case), num_devices=devices, model_parallel_size=model)
    assert meant[RAMP] == case["input"]["rampup_batch_size"]
    assert meant[GLOBAL] == case["input"]["global_batch_size"]
    assert (meant["rampup.semantics"], meant["rampup.node_policy"]) == ("maxtext", "fixed")
    ramp = ramp_meant(words_of(case), num_devices=devices, model_parallel_size=model)
    assert [
        {
            "global_batch_size": stage.global_batch_size,
            "first_consumed_samples": stage.first_sample,
            "first_iteration": stage.first_step,
            "steps": stage.steps,
        }
        for stage in ramp.stages
    ] == case["maxtext"]["stages"]
    for stage in ramp.stages:
        BatchPlan.divide(
            stage.global_batch_size,
            micro_batch_size=meant[MICRO],
            data_parallel_size=devices // model,
        )


@pytest.mark.parametrize("name", [name for name, case in RAMPS.items() if case["maxtext"]["error"]])
def test_a_ramp_that_maxtext_fails_on_is_refused(name):
    with pytest.raises(UsageError):
        ramp_meant(
            words_of(RAMPS[name]), num_devices=RAMPS[name]["maxtext"]["per_device"]["num_devices"]
        )


@given(
    start=st.integers(1, 64),
    increment=st.integers(1, 64),
    increments=st.integers(1, 8),
    model=st.sampled_from([1, 2, 4, 8]),
    data_ranks=st.sampled_from([1, 2, 4, 8]),
)
def test_the_micro_batch_of_a_ramp_is_the_largest_that_is_whole_in_every_batch_of_it(
    start, increment, increments, model, data_ranks
):
    devices = model * data_ranks
    target = start + increments * increment
    words = {
        PER_DEVICE: target / devices,
        ENABLE: True,
        START: start / devices,
        INCREMENT: increment / devices,
        RAMP_SAMPLES: 1000,
    }

    def divides(micro):
        return all(size % (micro * data_ranks) == 0 for size in range(start, target + 1, increment))

    if not divides(1):
        with pytest.raises(
            UsageError, match=f"is not whole on each of {data_ranks} data-parallel ranks"
        ) as refusal:
            meaning(words, num_devices=devices, model_parallel_size=model)
        unit = Fraction(
            refusal.value.remedy.removeprefix(f"{START} and {INCREMENT} in multiples of ")
        )
        rounded = words | {
            START: float(3 * unit),
            INCREMENT: float(2 * unit),
            PER_DEVICE: float(7 * unit),
        }
        assert meaning(rounded, num_devices=devices, model_parallel_size=model)[MICRO] == 1
        return
    meant = meaning(words, num_devices=devices, model_parallel_size=model)
    assert meant[RAMP] == [start, increment, 1000]
    assert meant[MICRO] == max(
        micro for micro in range(1, gcd(start, increment) + 1) if divides(micro)
    )


@given(
    thousandths=st.integers(1, 9999),
    devices=st.sampled_from([1, 2, 4, 8]),
    word=st.sampled_from([START, INCREMENT]),
)
def test_a_ramp_that_maxtext_would_truncate_is_refused_with_the_nearest_values_that_work(
    thousandths, devices, word
):
    words = {
        PER_DEVICE: 1000.0,
        ENABLE: True,
        START: 1.0,
        INCREMENT: 1.0,
        RAMP_SAMPLES: 1000,
        word: thousandths / 1000,
    }
    if thousandths * devices % 1000 == 0:
        assert meaning(words, num_devices=devices, model_parallel_size=devices)[RAMP]
        return
    with pytest.raises(UsageError, match=f"{word}=.* which is not whole") as refusal:
        meaning(words, num_devices=devices, model_parallel_size=devices)
    for offer in offered(refusal.value.remedy, word):
        ramp = meaning(words | {word: offer}, num_devices=devices, model_parallel_size=devices)[
            RAMP
        ]
        assert abs(ramp[word == INCREMENT] - Fraction(thousandths * devices, 1000)) <= 2


@pytest.mark.parametrize("word", [START, INCREMENT, RAMP_SAMPLES])
def test_a_word_of_a_ramp_that_is_not_enabled_is_refused_where_maxtext_passes_over_it(word):
    with pytest.raises(UsageError) as refusal:
        meaning({PER_DEVICE: 4, word: 2}, num_devices=8)
    assert (
        refusal.value.message
        == f"{word}=2 without enable_rampup_batch_size: MaxText would pass over it"
    )
    assert refusal.value.remedy == "enable_rampup_batch_size=true"


def test_a_ramp_that_is_switched_off_is_no_ramp_whatever_else_is_said_of_it():
    words = {PER_DEVICE: 4, ENABLE: False, START: 1, INCREMENT: 1, RAMP_SAMPLES: 100}
    assert meaning(words, num_devices=8) == {GLOBAL: 32, RAMP: None, MICRO: 4}


@pytest.mark.parametrize(
    "missing",
    [(START,), (INCREMENT,), (RAMP_SAMPLES,), (START, INCREMENT, RAMP_SAMPLES), (PER_DEVICE,)],
)
def test_a_ramp_names_every_word_that_it_lacks_and_gives_an_example_of_it(missing):
    words = {PER_DEVICE: 12.0, ENABLE: True, START: 4.0, INCREMENT: 2.0, RAMP_SAMPLES: 500}
    with pytest.raises(UsageError) as refusal:
        meaning(
            {word: value for word, value in words.items() if word not in missing}, num_devices=8
        )
    assert refusal.value.keys == (ENABLE, *missing)
    examples = dict(word.split("=") for word in refusal.value.remedy.partition(" (")[0].split(" "))
    assert tuple(examples) == missing
    assert meaning(words | {word: float(value) for word, value in examples.items()}, num_devices=8)[
        RAMP
    ] == [32, 16, 500]


def test_a_target_that_is_given_in_our_words_serves_a_ramp_in_maxtexts():
    meant = meaning(
        {ENABLE: True, START: 1, INCREMENT: 1, RAMP_SAMPLES: 100}, num_devices=8, **{GLOBAL: 32}
    )
    assert (meant[RAMP], meant[MICRO]) == ([8, 8, 100], 1)
    assert GLOBAL not in meant


def test_a_ramp_of_maxtext_does_not_go_with_accumulation():
    words = {PER_DEVICE: 4, ENABLE: True, START: 1, INCREMENT: 1, RAMP_SAMPLES: 100}
    assert meaning(words, num_devices=8, **{"trainer.accumulate_grad_batches": 1})[RAMP] == [
        8,
        8,
        100,
    ]
    with pytest.raises(UsageError) as refusal:
        meaning(words, num_devices=8, **{"trainer.accumulate_grad_batches": 2})
    assert refusal.value.keys == (ENABLE, "trainer.accumulate_grad_batches")


def test_without_maxtexts_words_nothing_is_meant():
    assert meaning({}, num_devices=8) == {}


@pytest.mark.parametrize(("devices", "model"), [(0, 1), (1, 2), (6, 4)])
def test_a_fleet_that_the_model_does_not_divide_is_left_to_the_plan_to_refuse(devices, model):
    assert (
        meaning(
            {PER_DEVICE: 4, "enable_rampup_batch_size": True},
            num_devices=devices,
            model_parallel_size=model,
        )
        == {}
    )


def test_only_sizes_that_can_be_written_as_a_decimal_are_offered():
    with pytest.raises(UsageError) as refusal:
        meaning({PER_DEVICE: 0.5}, num_devices=6, model_parallel_size=3)
    assert offered(refusal.value.remedy, PER_DEVICE) == [1]
