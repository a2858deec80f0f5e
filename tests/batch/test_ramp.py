import json
from fractions import Fraction
from itertools import groupby, pairwise
from math import floor
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rampcli.batch.plan import BatchPlan
from rampcli.batch.ramp import RampSchedule
from rampcli.errors import UsageError

ORACLE = json.loads((Path(__file__).parent / "oracles" / "rampup.json").read_text(encoding="utf-8"))
CASES = {case["name"]: case for case in ORACLE["cases"]}
WITH_STAGES = [name for name, case in CASES.items() if case["error"] is None]

RAMPS = st.tuples(st.integers(1, 24), st.integers(1, 12), st.integers(1, 12), st.integers(1, 400))
"""Start, increment, number of increments, samples."""


def schedule(ramp):
    start, increment, increments, samples = ramp
    return RampSchedule.from_rampup([start, increment, samples], global_batch_size=start + increment * increments)


def batch_by_the_rule(ramp, consumed):
    start, increment, increments, samples = ramp
    if consumed > samples:
        return start + increments * increment
    return start + floor(Fraction(consumed * increments, samples)) * increment


def steps_by_the_rule(ramp, beyond=3):
    start, increment, increments, _ = ramp
    consumed, at_target, steps = 0, 0, []
    while at_target < beyond:
        batch = batch_by_the_rule(ramp, consumed)
        steps.append((consumed, batch))
        consumed += batch
        at_target += batch == start + increments * increment
    return steps


def from_case(name):
    given = CASES[name]["input"]
    return RampSchedule.from_rampup(given["rampup_batch_size"], global_batch_size=given["global_batch_size"])


@given(ramp=RAMPS, consumed=st.integers(0, 10_000))
@example(ramp=(1, 4, 7, 58), consumed=58)
@example(ramp=(1, 1, 11, 50_000_000), consumed=50_000_000)
def test_the_batch_follows_the_rule_at_every_sample(ramp, consumed):
    assert schedule(ramp).global_batch_size_at(consumed) == batch_by_the_rule(ramp, consumed)


@given(increments=st.integers(1, 200), index=st.integers(0, 199), samples=st.integers(1, 10**18))
@example(increments=11, index=6, samples=50_000_000)
@example(increments=7, index=6, samples=58)
def test_the_batch_grows_exactly_at_its_share_of_the_samples(increments, index, samples):
    ramp = schedule((5, 3, increments, samples))
    share = min(index + 1, increments)
    first = -(-share * samples // increments)
    assert ramp.global_batch_size_at(first) >= 5 + 3 * share
    assert ramp.global_batch_size_at(first - 1) < 5 + 3 * share


@given(ramp=RAMPS)
def test_stages_are_the_runs_of_a_walk_step_by_step(ramp):
    steps = steps_by_the_rule(ramp)
    walked, first_step = [], 0
    for batch, run in groupby(steps, key=lambda step: step[1]):
        run = list(run)
        walked.append((batch, run[0][0], first_step, len(run)))
        first_step += len(run)
    stages = schedule(ramp).stages
    closed = [(stage.global_batch_size, stage.first_sample, stage.first_step, stage.steps) for stage in stages[:-1]]
    assert closed == walked[:-1]
    assert (stages[-1].global_batch_size, stages[-1].first_sample, stages[-1].first_step) == walked[-1][:3]
    assert (stages[-1].steps, stages[-1].samples) == (None, None)


@given(ramp=RAMPS)
def test_each_stage_begins_where_the_one_before_has_consumed_its_samples(ramp):
    stages = schedule(ramp).stages
    for stage, following in pairwise(stages):
        assert stage.steps >= 1
        assert stage.first_sample + stage.samples == following.first_sample
        assert stage.first_step + stage.steps == following.first_step
        assert stage.global_batch_size < following.global_batch_size


@given(ramp=RAMPS)
def test_looking_up_a_stage_gives_the_batch_of_that_step(ramp):
    planned = schedule(ramp)
    for consumed, batch in steps_by_the_rule(ramp):
        assert planned.stages[planned.stage_index_at(consumed)].global_batch_size == batch


@given(ramp=RAMPS)
def test_samples_after_so_many_steps_are_those_of_the_walk(ramp):
    planned = schedule(ramp)
    assert [planned.samples_after(step) for step in range(len(steps_by_the_rule(ramp)))] == [
        consumed for consumed, _ in steps_by_the_rule(ramp)
    ]


@given(ramp=RAMPS, share=st.floats(0, 1))
def test_steps_to_a_sample_are_the_fewest_that_consume_it(ramp, share):
    planned = schedule(ramp)
    consumed = [consumed for consumed, _ in steps_by_the_rule(ramp)]
    wanted = int(share * consumed[-1])
    assert planned.steps_to(wanted) == next(step for step, reached in enumerate(consumed) if reached >= wanted)


@given(ramp=RAMPS)
def test_nominal_sizes_hold_every_size_that_runs_and_end_at_the_target(ramp):
    start, increment, increments, _ = ramp
    planned = schedule(ramp)
    assert planned.nominal_sizes() == list(range(start, start + increment * increments + 1, increment))
    assert planned.nominal_sizes()[-1] == planned.target
    assert {stage.global_batch_size for stage in planned.stages} <= set(planned.nominal_sizes())


def test_a_ramp_of_any_length_is_planned_exactly():
    samples = 6 * 10**24
    stages = RampSchedule.from_rampup([256, 128, samples], global_batch_size=1024).stages
    assert [stage.global_batch_size for stage in stages] == [256, 384, 512, 640, 768, 896, 1024]
    assert stages[0].steps == -(-(10**24) // 256)
    assert 0 <= stages[-1].first_sample - samples < 896


@pytest.mark.parametrize("rampup", [None, [16, 4, 100], [4, 4, 0]], ids=["no ramp", "start at the target", "no samples"])
def test_a_ramp_of_no_steps_is_one_open_stage_at_the_target(rampup):
    planned = RampSchedule.from_rampup(rampup, global_batch_size=16)
    assert planned == RampSchedule.constant(16)
    assert [(stage.global_batch_size, stage.first_sample, stage.first_step, stage.steps) for stage in planned.stages] == [(16, 0, 0, None)]
    assert [planned.global_batch_size_at(consumed) for consumed in (0, 1, 10**12)] == [16, 16, 16]
    assert (planned.samples_after(3), planned.steps_to(48), planned.steps_to(49)) == (48, 3, 4)


@pytest.mark.parametrize("name", WITH_STAGES)
def test_stages_are_those_of_megatron(name):
    given = CASES[name]["input"]
    ours = [
        {
            "global_batch_size": stage.global_batch_size,
            "num_microbatches": BatchPlan.divide(
                stage.global_batch_size, micro_batch_size=given["micro_batch_size"], data_parallel_size=given["data_parallel_size"]
            ).accumulate_grad_batches,
            "first_consumed_samples": stage.first_sample,
            "first_iteration": stage.first_step,
            "steps": stage.steps,
        }
        for stage in from_case(name).stages
    ]
    assert ours == CASES[name]["stages"]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "train_iters" in case])
def test_the_whole_steps_that_so_many_samples_hold_are_those_of_megatron(name):
    ramp, samples, steps = from_case(name), CASES[name]["train_samples"], CASES[name]["train_iters"]
    assert ramp.samples_after(steps) <= samples < ramp.samples_after(steps + 1)


def test_where_megatron_divides_by_zero_the_target_holds_from_the_start():
    assert CASES["start_equals_gbs"]["error"]["type"] == "ZeroDivisionError"
    assert from_case("start_equals_gbs") == RampSchedule.constant(16)


def test_where_megatron_rounds_a_float_down_the_answer_is_exact():
    walk = ORACLE["megatron_float_natural_walk"]
    planned = RampSchedule.from_rampup(walk["rampup_batch_size"], global_batch_size=walk["global_batch_size"])
    assert planned.global_batch_size_at(walk["consumed_samples"]) == walk["exact_rational_gbs"] == walk["megatron_gbs"] + 4


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("start_greater_than_gbs", "starts at 32, above model.global_batch_size=16"),
        ("increment_not_dividing", "from 16 to model.global_batch_size=32 is 16, which is not a multiple of the increment 5"),
        ("zero_increment", "increment 0 is below 1"),
        ("two_values", "has 2 values; it takes three"),
    ],
)
def test_what_megatron_asserts_is_a_usage_error(name, message):
    assert CASES[name]["error"]["type"] == "AssertionError"
    with pytest.raises(UsageError) as refusal:
        from_case(name)
    assert message in refusal.value.message
    assert refusal.value.keys[0] == "model.rampup_batch_size"


@pytest.mark.parametrize(
    "rampup", [[], [4], [4, 4, 100, 1], [0, 4, 100], [-4, 4, 100], [4, -4, 100], [4, 4, -1]], ids=lambda rampup: str(rampup)
)
def test_a_ramp_with_a_missing_or_impossible_value_is_refused_as_it_was_written(rampup):
    with pytest.raises(UsageError) as refusal:
        RampSchedule.from_rampup(rampup, global_batch_size=16)
    assert f"model.rampup_batch_size=[{','.join(map(str, rampup))}]" in refusal.value.message


@given(start=st.integers(1, 60), increment=st.integers(2, 40), rise=st.integers(1, 200))
def test_targets_offered_for_an_increment_that_does_not_divide_are_the_nearest_that_work(start, increment, rise):
    if rise % increment == 0:
        return
    with pytest.raises(UsageError) as refusal:
        RampSchedule.from_rampup([start, increment, 100], global_batch_size=start + rise)
    offered = refusal.value.remedy.partition(",")[0].removeprefix("model.global_batch_size=").split(" or ")
    below, above = start + rise - rise % increment, start + rise - rise % increment + increment
    assert [int(target) for target in offered] == ([below, above] if below > start else [above])
    for target in offered:
        assert RampSchedule.from_rampup([start, increment, 100], global_batch_size=int(target)).target == int(target)


@pytest.mark.parametrize("target", [0, -16])
def test_a_target_below_one_is_refused(target):
    with pytest.raises(UsageError, match=f"model.global_batch_size={target} is less than one"):
        RampSchedule.constant(target)


def test_a_negative_number_of_samples_has_no_batch():
    with pytest.raises(ValueError, match="consumed_samples=-1"):
        RampSchedule.constant(16).global_batch_size_at(-1)
