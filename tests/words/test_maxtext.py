from fractions import Fraction
from math import gcd, lcm

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles import RAMP_CASES
from rampcli.batch.micro_batch import LARGEST, STAGE_MICRO_KEY, MicroBatchRule
from rampcli.batch.plan import BatchPlan
from rampcli.batch.ramp import RampSchedule
from rampcli.errors import UsageError
from rampcli.words.maxtext import (
    ENABLE,
    INCREMENT,
    PER_DEVICE,
    RAMP_SAMPLES,
    START,
    read_batch,
)
from remedies import offers

RAMPS = {name: case for name, case in RAMP_CASES.items() if "maxtext" in case}
UNSET = {
    "model.global_batch_size": None,
    "trainer.accumulate_grad_batches": None,
    "parallel.pipeline_parallel_size": 1,
}
GLOBAL, MICRO, RAMP = "model.global_batch_size", "data.micro_batch_size", "model.rampup_batch_size"
PIPELINE = "parallel.num_pipeline_microbatches"


def meaning(words, *, num_devices, model_parallel_size=1, one_micro_batch=False, **settings):
    return read_batch(
        words,
        num_devices=num_devices,
        model_parallel_size=model_parallel_size,
        settings=UNSET | settings,
        one_micro_batch=one_micro_batch,
    )


def offered(refusal, word):
    """Returns the numbers that a refusal offers for a word."""
    return [float(offer[word]) for offer in offers(refusal)]


@given(
    samples_per_rank=st.integers(1, 64),
    model=st.sampled_from([1, 2, 4, 8]),
    data_ranks=st.integers(1, 64),
    accumulate=st.none() | st.integers(1, 8),
)
def test_a_batch_per_device_means_the_same_samples_as_in_maxtext(
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
    assert meant[GLOBAL] == devices * Fraction(str(per_device)) * (accumulate or 1)
    plan = BatchPlan.divide(
        meant[GLOBAL], micro_batch_size=meant[MICRO], data_parallel_size=data_ranks
    )
    assert plan.accumulate_grad_batches == (accumulate or 1)


def test_a_decimal_batch_per_device_is_exact_and_not_a_binary_fraction():
    assert 3 * 0.1 * 10 != 3
    assert meaning({PER_DEVICE: 0.1}, num_devices=30, model_parallel_size=10)[GLOBAL] == 3


@given(
    per_device=st.integers(1, 99_999).map(lambda thousandths: thousandths / 1000),
    devices=st.sampled_from([1, 2, 4, 8]),
)
def test_a_batch_per_device_with_a_fractional_total_is_refused_with_the_nearest_whole_ones(
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
        for offer in offered(refusal.value, PER_DEVICE)
    ]
    below = max(1, int(samples))
    assert nearest == [below, below + 1]


@given(
    per_device=st.integers(1, 999).map(lambda eighths: eighths / 8),
    model=st.sampled_from([1, 2, 4]),
    data_ranks=st.sampled_from([8, 16]),
)
def test_a_batch_per_device_fractional_on_a_rank_is_refused_with_the_nearest_whole_ones(
    per_device, model, data_ranks
):
    devices = model * data_ranks
    if (per_device * model).is_integer():
        assert (
            meaning({PER_DEVICE: per_device}, num_devices=devices, model_parallel_size=model)[MICRO]
            == per_device * model
        )
        return
    with pytest.raises(UsageError) as refusal:
        meaning({PER_DEVICE: per_device}, num_devices=devices, model_parallel_size=model)
    nearest = [
        meaning({PER_DEVICE: offer}, num_devices=devices, model_parallel_size=model)[MICRO]
        for offer in offered(refusal.value, PER_DEVICE)
    ]
    below = max(1, int(per_device * model))
    assert nearest == [below, below + 1]


@pytest.mark.parametrize("per_device", [0, 0.0, -1, -0.5])
def test_a_batch_per_device_of_zero_or_less_is_refused(per_device):
    with pytest.raises(UsageError) as refusal:
        meaning({PER_DEVICE: per_device}, num_devices=8)
    assert refusal.value.keys == (PER_DEVICE, "trainer.num_nodes", "trainer.devices")


def test_maxtexts_default_is_one_microbatch_per_pipeline_stage():
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
def test_a_ramp_in_maxtexts_words_has_maxtexts_stages(name):
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
    rule = MicroBatchRule(size=meant[MICRO], varies=meant[STAGE_MICRO_KEY] == LARGEST)
    for stage in ramp.stages:
        share = stage.global_batch_size // (devices // model)
        assert rule.on(stage.global_batch_size, devices // model) == share


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
def test_the_one_micro_batch_of_a_ramp_is_the_largest_that_divides_every_batch(
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
        with pytest.raises(UsageError) as refusal:
            meaning(words, num_devices=devices, model_parallel_size=model)
        unit = Fraction(
            refusal.value.remedy.removeprefix(f"{START} and {INCREMENT} in multiples of ")
        )
        rounded = words | {
            START: float(3 * unit),
            INCREMENT: float(2 * unit),
            PER_DEVICE: float(7 * unit),
        }
        assert meaning(rounded, num_devices=devices, model_parallel_size=model)[MICRO] == 7
        return
    meant = meaning(words, num_devices=devices, model_parallel_size=model, one_micro_batch=True)
    assert meant[RAMP] == [start, increment, 1000]
    assert meant[MICRO] == max(
        micro for micro in range(1, gcd(start, increment) + 1) if divides(micro)
    )
    assert STAGE_MICRO_KEY not in meant


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
    start, increment = (
        Fraction(words[each]).limit_denominator() * devices for each in (START, INCREMENT)
    )
    if (
        start.denominator == increment.denominator == 1
        and (1000 * devices - start) % increment == 0
    ):
        assert meaning(words, num_devices=devices, model_parallel_size=devices)[RAMP]
        return
    with pytest.raises(UsageError) as refusal:
        meaning(words, num_devices=devices, model_parallel_size=devices)
    for offer in offers(refusal.value):
        typed = words | {key: float(value) for key, value in offer.items()}
        ramp = meaning(typed, num_devices=devices, model_parallel_size=devices)[RAMP]
        assert (1000 * devices - ramp[0]) % ramp[1] == 0


@pytest.mark.parametrize("word", [START, INCREMENT, RAMP_SAMPLES])
def test_a_word_of_a_ramp_that_is_not_enabled_is_refused_although_maxtext_ignores_it(word):
    with pytest.raises(UsageError) as refusal:
        meaning({PER_DEVICE: 4, word: 2}, num_devices=8)
    assert (
        refusal.value.message
        == f"{word}=2 without enable_rampup_batch_size: MaxText would ignore it"
    )
    assert refusal.value.remedy == "enable_rampup_batch_size=true"


def test_a_disabled_ramp_is_left_out_whatever_its_other_words():
    words = {PER_DEVICE: 4, ENABLE: False, START: 1, INCREMENT: 1, RAMP_SAMPLES: 100}
    assert meaning(words, num_devices=8) == {GLOBAL: 32, RAMP: None, MICRO: 4}


@pytest.mark.parametrize(
    "missing",
    [(START,), (INCREMENT,), (RAMP_SAMPLES,), (START, INCREMENT, RAMP_SAMPLES), (PER_DEVICE,)],
)
def test_every_missing_word_of_a_ramp_is_named_with_an_example(missing):
    words = {PER_DEVICE: 12.0, ENABLE: True, START: 4.0, INCREMENT: 2.0, RAMP_SAMPLES: 500}
    with pytest.raises(UsageError) as refusal:
        meaning(
            {word: value for word, value in words.items() if word not in missing}, num_devices=8
        )
    assert refusal.value.keys == (ENABLE, *missing)
    [examples] = offers(refusal.value)
    assert tuple(examples) == missing
    assert meaning(words | {word: float(value) for word, value in examples.items()}, num_devices=8)[
        RAMP
    ] == [32, 16, 500]


def test_a_target_in_canonical_keys_applies_to_a_ramp_in_maxtexts_words():
    meant = meaning(
        {ENABLE: True, START: 1, INCREMENT: 1, RAMP_SAMPLES: 100}, num_devices=8, **{GLOBAL: 32}
    )
    assert (meant[RAMP], meant[MICRO], meant[STAGE_MICRO_KEY]) == ([8, 8, 100], 4, LARGEST)
    assert GLOBAL not in meant


@pytest.mark.parametrize(("increment", "parts"), [(2, 4), (1, 4), (0.5, None)])
def test_the_passes_of_a_ramp_fill_the_pipeline_if_all_of_them_divide(increment, parts):
    words = {PER_DEVICE: 4, ENABLE: True, START: 2, INCREMENT: increment, RAMP_SAMPLES: 100}
    machine = {"num_devices": 8, "model_parallel_size": 4, "parallel.pipeline_parallel_size": 4}
    meant = meaning(words, **machine)
    assert (meant[MICRO], meant.get(PIPELINE)) == (16, parts)
    assert PIPELINE not in meaning(words, **machine, one_micro_batch=True)


def test_a_maxtext_ramp_with_accumulation_is_refused():
    words = {PER_DEVICE: 4, ENABLE: True, START: 1, INCREMENT: 1, RAMP_SAMPLES: 100}
    assert meaning(words, num_devices=8, **{"trainer.accumulate_grad_batches": 1})[RAMP] == [
        8,
        8,
        100,
    ]
    with pytest.raises(UsageError) as refusal:
        meaning(words, num_devices=8, **{"trainer.accumulate_grad_batches": 2})
    assert refusal.value.keys == (ENABLE, "trainer.accumulate_grad_batches")


def test_without_maxtexts_words_nothing_is_set():
    assert meaning({}, num_devices=8) == {}


@pytest.mark.parametrize(("devices", "model"), [(0, 1), (1, 2), (6, 4)])
def test_a_fleet_that_the_model_does_not_divide_is_refused_by_the_plan_only(devices, model):
    assert (
        meaning(
            {PER_DEVICE: 4, "enable_rampup_batch_size": True},
            num_devices=devices,
            model_parallel_size=model,
        )
        == {}
    )


def test_only_sizes_with_an_exact_decimal_are_suggested():
    with pytest.raises(UsageError) as refusal:
        meaning({PER_DEVICE: 0.5}, num_devices=6, model_parallel_size=3)
    assert offered(refusal.value, PER_DEVICE) == [1]
