import re
from fractions import Fraction
from itertools import groupby, pairwise
from math import floor

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rampcli.batch.ramp import MOST_SIZES, RampSchedule
from rampcli.errors import UsageError

RAMPS = st.tuples(st.integers(1, 24), st.integers(1, 12), st.integers(1, 12), st.integers(1, 400))
"""Start, increment, number of increments, samples."""
LONG_RAMPS = st.tuples(
    st.integers(1, 4096), st.integers(1, 1024), st.integers(1, 40), st.integers(10**12, 10**24)
)
SEMANTICS = st.sampled_from(["megatron", "maxtext"])


def schedule(ramp, semantics="megatron"):
    start, increment, increments, samples = ramp
    return RampSchedule.from_rampup(
        [start, increment, samples],
        global_batch_size=start + increment * increments,
        semantics=semantics,
    )


def batch_by_the_rule(ramp, consumed):
    start, increment, increments, samples = ramp
    if consumed > samples:
        return start + increments * increment
    return start + floor(Fraction(consumed * increments, samples)) * increment


def megatron_walk(ramp, beyond=3):
    """Returns (consumed samples before the step, batch) up to `beyond` steps at the target."""
    start, increment, increments, _ = ramp
    consumed, at_target, steps = 0, 0, []
    while at_target < beyond:
        batch = batch_by_the_rule(ramp, consumed)
        steps.append((consumed, batch))
        consumed += batch
        at_target += batch == start + increments * increment
    return steps


def maxtext_walk(ramp, beyond=3):
    """Walks like MaxText: samples beyond a stage's share do not count for the next stage."""
    start, increment, increments, samples = ramp
    consumed, counter, batch, at_target, steps = 0, 0, start, 0, []
    while at_target < beyond:
        steps.append((consumed, batch))
        consumed, counter = consumed + batch, counter + batch
        at_target += batch == start + increments * increment
        if batch < start + increments * increment and counter >= Fraction(samples, increments):
            batch, counter = batch + increment, 0
    return steps


def walk(ramp, semantics):
    return {"megatron": megatron_walk, "maxtext": maxtext_walk}[semantics](ramp)


def runs_of(steps):
    """Returns batch, first sample, first step and steps of each run of equal batches."""
    runs, first_step = [], 0
    for batch, group in groupby(steps, key=lambda step: step[1]):
        run = list(group)
        runs.append((batch, run[0][0], first_step, len(run)))
        first_step += len(run)
    return runs


@given(ramp=RAMPS, consumed=st.integers(0, 10_000))
@example(ramp=(1, 4, 7, 58), consumed=58)
@example(ramp=(1, 1, 11, 50_000_000), consumed=50_000_000)
def test_the_batch_follows_the_rule_of_megatron_at_every_sample(ramp, consumed):
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


@given(ramp=RAMPS, semantics=SEMANTICS)
def test_stages_equal_those_of_a_step_by_step_simulation(ramp, semantics):
    walked = runs_of(walk(ramp, semantics))
    stages = schedule(ramp, semantics).stages
    closed = [
        (stage.global_batch_size, stage.first_sample, stage.first_step, stage.steps)
        for stage in stages[:-1]
    ]
    assert closed == walked[:-1]
    assert (stages[-1].global_batch_size, stages[-1].first_sample, stages[-1].first_step) == walked[
        -1
    ][:3]
    assert (stages[-1].steps, stages[-1].samples, stages[-1].end_sample) == (None, None, None)


@given(ramp=RAMPS | LONG_RAMPS, semantics=SEMANTICS)
def test_each_stage_begins_where_the_previous_one_ends(ramp, semantics):
    stages = schedule(ramp, semantics).stages
    assert (stages[0].first_sample, stages[0].first_step) == (0, 0)
    for stage, following in pairwise(stages):
        assert stage.steps >= 1
        assert stage.samples == stage.steps * stage.global_batch_size
        assert stage.end_sample == stage.first_sample + stage.samples == following.first_sample
        assert stage.first_step + stage.steps == following.first_step
        assert stage.global_batch_size < following.global_batch_size


@given(ramp=LONG_RAMPS)
def test_after_any_number_of_samples_a_stage_ends_with_the_very_step_that_reaches_its_share(ramp):
    stages = schedule(ramp).stages
    for stage, following in pairwise(stages):
        assert (
            batch_by_the_rule(ramp, stage.end_sample - stage.global_batch_size)
            == stage.global_batch_size
        )
        assert batch_by_the_rule(ramp, stage.end_sample) == following.global_batch_size
    assert (
        batch_by_the_rule(ramp, stages[-1].first_sample)
        == stages[-1].global_batch_size
        == schedule(ramp).target
    )


@given(ramp=RAMPS, semantics=SEMANTICS)
def test_a_lookup_returns_the_batch_stage_and_bounds_of_every_step(ramp, semantics):
    planned = schedule(ramp, semantics)
    for step, (consumed, batch) in enumerate(walk(ramp, semantics)):
        stage = planned.stage_at(consumed)
        assert stage is planned.stages[planned.stage_index_at(consumed)]
        assert stage.global_batch_size == planned.global_batch_size_at(consumed) == batch
        assert stage.first_sample + (step - stage.first_step) * batch == consumed
        assert stage.first_step <= step
        assert stage.steps is None or step < stage.first_step + stage.steps
        assert stage.end_sample is None or consumed + batch <= stage.end_sample


@given(ramp=LONG_RAMPS, semantics=SEMANTICS, data=st.data())
def test_a_lookup_is_exact_beyond_the_range_of_floats(ramp, semantics, data):
    planned = schedule(ramp, semantics)
    stage = data.draw(st.sampled_from(planned.stages))
    step = data.draw(st.integers(0, 10**30 if stage.steps is None else stage.steps - 1))
    consumed = stage.first_sample + step * stage.global_batch_size
    assert planned.stage_at(consumed) is stage
    assert planned.samples_after(stage.first_step + step) == consumed
    assert planned.steps_to(consumed) == stage.first_step + step
    assert planned.steps_to(consumed + 1) == stage.first_step + step + 1


@given(ramp=RAMPS, semantics=SEMANTICS)
def test_samples_after_any_number_of_steps_equal_a_simulation(ramp, semantics):
    planned = schedule(ramp, semantics)
    steps = walk(ramp, semantics)
    assert [planned.samples_after(step) for step in range(len(steps))] == [
        consumed for consumed, _ in steps
    ]


@given(ramp=RAMPS, semantics=SEMANTICS, share=st.floats(0, 1))
def test_steps_to_a_sample_are_the_fewest_that_consume_it(ramp, semantics, share):
    planned = schedule(ramp, semantics)
    consumed = [consumed for consumed, _ in walk(ramp, semantics)]
    wanted = int(share * consumed[-1])
    assert planned.steps_to(wanted) == next(
        step for step, reached in enumerate(consumed) if reached >= wanted
    )


@given(ramp=RAMPS, semantics=SEMANTICS)
def test_scheduled_sizes_include_every_size_that_runs_and_end_at_the_target(ramp, semantics):
    start, increment, increments, _ = ramp
    planned = schedule(ramp, semantics)
    running = {stage.global_batch_size for stage in planned.stages}
    whole = list(range(start, start + increment * increments + 1, increment))
    assert running <= set(planned.scheduled_sizes()) <= set(whole)
    assert planned.scheduled_sizes() == sorted(planned.scheduled_sizes())
    assert planned.scheduled_sizes()[-1] == planned.target == whole[-1]


@given(ramp=RAMPS)
def test_every_size_of_a_maxtext_ramp_takes_at_least_one_step(ramp):
    start, increment, increments, _ = ramp
    stages = schedule(ramp, "maxtext").stages
    assert [stage.global_batch_size for stage in stages] == list(
        range(start, start + increment * increments + 1, increment)
    )


def test_a_maxtext_ramp_of_no_samples_takes_one_step_of_every_size():
    stages = RampSchedule.from_rampup([4, 4, 0], global_batch_size=16, semantics="maxtext").stages
    assert [(stage.global_batch_size, stage.steps) for stage in stages] == [
        (4, 1),
        (8, 1),
        (12, 1),
        (16, None),
    ]


@given(ramp=RAMPS)
def test_a_maxtext_ramp_never_reaches_a_size_before_megatrons(ramp):
    megatron = {stage.global_batch_size: stage.first_sample for stage in schedule(ramp).stages}
    maxtext = {
        stage.global_batch_size: stage.first_sample for stage in schedule(ramp, "maxtext").stages
    }
    assert all(maxtext[size] >= first_sample for size, first_sample in megatron.items())


@pytest.mark.parametrize("semantics", ["megatron", "maxtext"])
@pytest.mark.parametrize("samples", [10**6, 50 * 10**6, 10**12, 6 * 10**24])
def test_a_ramp_has_one_stage_per_size_whatever_its_samples(samples, semantics):
    planned = RampSchedule.from_rampup(
        [256, 128, samples], global_batch_size=1024, semantics=semantics
    )
    assert [stage.global_batch_size for stage in planned.stages] == [*range(256, 1025, 128)]
    assert len(planned.thresholds) == 7
    assert planned.stages[0].steps == -(-samples // (6 * 256))
    assert 0 <= planned.stages[-1].first_sample - samples < sum(planned.scheduled_sizes())


@pytest.mark.parametrize(
    "rampup", [None, [16, 4, 100], [4, 4, 0]], ids=["no ramp", "start at the target", "no samples"]
)
def test_a_ramp_of_no_steps_is_one_open_stage_at_the_target(rampup):
    planned = RampSchedule.from_rampup(rampup, global_batch_size=16)
    assert planned == RampSchedule.constant(16)
    assert [
        (stage.global_batch_size, stage.first_sample, stage.first_step, stage.steps)
        for stage in planned.stages
    ] == [(16, 0, 0, None)]
    assert [planned.global_batch_size_at(consumed) for consumed in (0, 1, 10**12)] == [16, 16, 16]
    assert (planned.samples_after(3), planned.steps_to(48), planned.steps_to(49)) == (48, 3, 4)


@given(ramp=RAMPS, unit=st.integers(1, 12))
def test_decreased_batches_count_the_samples_that_they_run(ramp, unit):
    planned = schedule(ramp)
    decreased = {
        size: size - size % unit
        for size in planned.scheduled_sizes()
        if size % unit and size > unit
    }
    consumed, stages = 0, planned.with_decreased(decreased).stages
    for _ in range(60):
        scheduled = batch_by_the_rule(ramp, consumed)
        running = decreased.get(scheduled, scheduled)
        assert planned.with_decreased(decreased).global_batch_size_at(consumed) == running
        stage = planned.with_decreased(decreased).stage_at(consumed)
        assert (stage.scheduled_batch_size, stage.global_batch_size) == (scheduled, running)
        assert stage in stages
        consumed += running


@pytest.mark.parametrize(
    "rampup",
    [[], [4], [4, 4, 100, 1], [0, 4, 100], [-4, 4, 100], [4, -4, 100], [4, 4, -1]],
    ids=lambda rampup: str(rampup),
)
def test_a_ramp_with_a_missing_or_impossible_value_is_refused_and_quoted(rampup):
    with pytest.raises(UsageError) as refusal:
        RampSchedule.from_rampup(rampup, global_batch_size=16)
    assert f"model.rampup_batch_size=[{','.join(map(str, rampup))}]" in refusal.value.message


@given(start=st.integers(1, 60), increment=st.integers(2, 40), rise=st.integers(1, 200))
def test_the_suggested_targets_and_increments_of_a_ramp_are_the_nearest_that_work(
    start, increment, rise
):
    if rise % increment == 0:
        return
    with pytest.raises(UsageError) as refusal:
        RampSchedule.from_rampup([start, increment, 100], global_batch_size=start + rise)
    targets, increments = (
        [int(count) for count in re.findall(r"\d+", part)]
        for part in refusal.value.remedy.split(", or an increment of ")
    )
    below, above = start + rise - rise % increment, start + rise - rise % increment + increment
    assert targets == ([below, above] if below > start else [above])
    for target in targets:
        assert (
            RampSchedule.from_rampup([start, increment, 100], global_batch_size=target).target
            == target
        )
    dividing = [other for other in range(1, rise + 1) if rise % other == 0]
    assert (
        increments
        == [other for other in dividing if other < increment][-1:]
        + [other for other in dividing if other > increment][:1]
    )
    for other in increments:
        assert (
            RampSchedule.from_rampup([start, other, 100], global_batch_size=start + rise).target
            == start + rise
        )


def test_a_ramp_of_too_many_sizes_is_refused_with_an_increment_that_works():
    assert (
        len(RampSchedule.from_rampup([1, 1, 10**12], global_batch_size=MOST_SIZES).stages)
        == MOST_SIZES
    )
    with pytest.raises(UsageError, match=f"has {MOST_SIZES + 1} batch sizes"):
        RampSchedule.from_rampup([1, 1, 10**12], global_batch_size=MOST_SIZES + 1)
    with pytest.raises(UsageError) as refusal:
        RampSchedule.from_rampup([1, 1, 10**12], global_batch_size=3 * MOST_SIZES - 2)
    assert f"has {3 * MOST_SIZES - 2} batch sizes" in refusal.value.message
    assert f"the limit is {MOST_SIZES}" in refusal.value.message
    assert refusal.value.remedy == "an increment of at least 3"
    assert (
        len(RampSchedule.from_rampup([1, 3, 10**12], global_batch_size=3 * MOST_SIZES - 2).stages)
        == MOST_SIZES
    )


@pytest.mark.parametrize("target", [0, -16])
def test_a_target_below_one_is_refused(target):
    with pytest.raises(UsageError, match=f"model.global_batch_size={target} is less than one"):
        RampSchedule.constant(target)


@given(ramp=RAMPS, semantics=SEMANTICS)
@example(ramp=(1, 1, 2, 1), semantics="megatron")
def test_of_several_thresholds_at_one_sample_the_last_one_is_kept(ramp, semantics):
    planned = schedule(ramp, semantics)
    distinct = planned.distinct_thresholds()
    assert all(one.first_sample < other.first_sample for one, other in pairwise(distinct))
    assert RampSchedule(thresholds=distinct).stages == planned.stages
    assert {threshold.first_sample for threshold in distinct} == {
        threshold.first_sample for threshold in planned.thresholds
    }


def test_a_negative_number_of_samples_has_no_batch():
    with pytest.raises(ValueError, match="consumed_samples=-1"):
        RampSchedule.constant(16).global_batch_size_at(-1)
