from itertools import pairwise

import pytest

from oracles import RAMP_CASES, RAMPS
from rampcli.batch.plan import BatchPlan
from rampcli.batch.ramp import RampSchedule
from rampcli.errors import UsageError

MEGATRON = {name: case["megatron_legacy"] for name, case in RAMP_CASES.items()}
MAXTEXT = {name: case["maxtext"] for name, case in RAMP_CASES.items() if "maxtext" in case}
WITH_STAGES = [name for name, megatron in MEGATRON.items() if megatron["error"] is None]
FAILS_ON_THE_WAY = [
    name
    for name, megatron in MEGATRON.items()
    if megatron["error"] and megatron["error"]["phase"] == "step"
]
DRIFTS = {str(run["rampup_batch_size"]): run for run in RAMPS["nemo2_drift"]["runs"]}


def from_case(name, semantics="megatron"):
    given = RAMP_CASES[name]["input"]
    ramp = RampSchedule.from_rampup(
        given["rampup_batch_size"],
        global_batch_size=given["global_batch_size"],
        semantics=semantics,
    )
    if given["decrease_batch_size_if_needed"]:
        unit = given["micro_batch_size"] * given["data_parallel_size"]
        ramp = ramp.with_decreased(
            {size: size - size % unit for size in ramp.scheduled_sizes() if size > size % unit}
        )
    return ramp


def stages_in_the_words_of_megatron(name):
    given = RAMP_CASES[name]["input"]
    for stage in from_case(name).stages:
        batch = BatchPlan.divide(
            stage.global_batch_size,
            micro_batch_size=given["micro_batch_size"],
            data_parallel_size=given["data_parallel_size"],
        )
        yield {
            "global_batch_size": stage.scheduled_batch_size,
            "running_global_batch_size": stage.global_batch_size,
            "num_microbatches": batch.accumulate_grad_batches,
            "first_consumed_samples": stage.first_sample,
            "first_iteration": stage.first_step,
            "steps": stage.steps,
        }


@pytest.mark.parametrize("name", WITH_STAGES)
def test_stages_are_those_of_megatron_including_decreased_ones(name):
    assert list(stages_in_the_words_of_megatron(name)) == MEGATRON[name]["stages"]


@pytest.mark.parametrize(
    "name", [name for name, megatron in MEGATRON.items() if "train_iters" in megatron]
)
def test_the_whole_steps_within_a_number_of_samples_are_those_of_megatron(name):
    ramp, samples, steps = (
        from_case(name),
        MEGATRON[name]["train_samples"],
        MEGATRON[name]["train_iters"],
    )
    assert ramp.samples_after(steps) <= samples < ramp.samples_after(steps + 1)


@pytest.mark.parametrize("name", FAILS_ON_THE_WAY)
def test_the_stage_that_megatron_fails_on_begins_at_the_same_sample(name):
    """Such a ramp is refused by the training plan, before the run starts."""
    failed = MEGATRON[name]["error"]
    stage = from_case(name).stage_at(failed["consumed_samples"])
    assert (stage.first_sample, stage.first_step) == (
        failed["consumed_samples"],
        failed["iteration"],
    )


def test_the_target_applies_from_the_start_where_megatron_divides_by_zero():
    assert MEGATRON["start_equals_gbs"]["error"]["type"] == "ZeroDivisionError"
    assert from_case("start_equals_gbs") == RampSchedule.constant(16)


def test_the_batch_is_exact_where_megatron_rounds_a_float_down():
    floats = RAMPS["megatron_float_natural_walk"]
    planned = RampSchedule.from_rampup(
        floats["rampup_batch_size"], global_batch_size=floats["global_batch_size"]
    )
    assert (floats["megatron_gbs"], floats["exact_rational_gbs"]) == (25, 29)
    assert planned.global_batch_size_at(floats["consumed_samples"]) == 29
    assert planned.stage_at(floats["consumed_samples"]).first_sample == floats["consumed_samples"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("start_greater_than_gbs", "starts at 32, above model.global_batch_size=16"),
        (
            "increment_not_dividing",
            "from 16 to model.global_batch_size=32 is 16,"
            " which is not a multiple of the increment 5",
        ),
        ("zero_increment", "increment 0 is below 1"),
        ("two_values", "has 2 values; it takes three"),
    ],
)
@pytest.mark.parametrize("semantics", ["megatron", "maxtext"])
def test_assertions_and_divisions_by_zero_of_other_systems_are_usage_errors(
    name, message, semantics
):
    with pytest.raises(UsageError) as refusal:
        from_case(name, semantics)
    assert message in refusal.value.message
    assert refusal.value.keys[0] == "model.rampup_batch_size"
    assert refusal.value.remedy


def test_every_case_of_the_oracles_is_tested():
    refused = {
        "start_equals_gbs",
        "start_greater_than_gbs",
        "increment_not_dividing",
        "zero_increment",
        "two_values",
    }
    assert {*WITH_STAGES, *FAILS_ON_THE_WAY, *refused} == set(RAMP_CASES)
    assert {name for name, maxtext in MAXTEXT.items() if maxtext["error"]} == refused - {
        "two_values"
    }


@pytest.mark.parametrize(
    "name", [name for name, maxtext in MAXTEXT.items() if maxtext["error"] is None]
)
def test_stages_under_maxtext_semantics_are_those_of_maxtext(name):
    given = RAMP_CASES[name]["input"]
    planned = RampSchedule.from_rampup(
        given["rampup_batch_size"],
        global_batch_size=given["global_batch_size"],
        semantics="maxtext",
    )
    ours = [
        {
            "global_batch_size": stage.global_batch_size,
            "first_consumed_samples": stage.first_sample,
            "first_iteration": stage.first_step,
            "steps": stage.steps,
        }
        for stage in planned.stages
    ]
    assert ours == MAXTEXT[name]["stages"]
    assert planned.stages[-1].first_step == MAXTEXT[name]["total_rampup_steps"]


def test_a_maxtext_ramp_that_starts_at_its_target_is_refused_as_in_maxtext():
    assert MAXTEXT["start_equals_gbs"]["error"]["type"] == "ValueError"
    with pytest.raises(UsageError) as refusal:
        from_case("start_equals_gbs", "maxtext")
    assert "starts at model.global_batch_size=16" in refusal.value.message


@pytest.mark.parametrize("name", DRIFTS)
def test_a_stage_ends_at_the_samples_that_it_read_although_the_counter_of_nemo_2_drifts(
    name,
):
    """NeMo 2 also takes one step of the next size before it stops, so its stages end later."""
    run = DRIFTS[name]
    read = 0
    for start in run["starts"]:
        read += sum(batch * steps for batch, steps in start["gbs_steps"])
        assert start["true_cumulative_samples"] == read
        assert start["checkpoint_consumed_samples"] == read + start["drift"]
        assert start["drift"] > 0
    planned = RampSchedule.from_rampup(
        run["rampup_batch_size"], global_batch_size=run["global_batch_size"]
    )
    consumed = 0
    for stage, following in pairwise(planned.stages):
        checkpoint = consumed + stage.steps * stage.global_batch_size
        assert checkpoint == stage.end_sample
        last_step = checkpoint - stage.global_batch_size
        assert planned.stage_at(last_step) is stage
        assert planned.stage_at(checkpoint) is following
        assert following.first_sample == checkpoint
        consumed = checkpoint
