"""Plans of runs that resume: finished stages need not fit the fleet."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plans import COUNTS, OF_A_FLEET, fleet_of, plan, ramp_of, scheduled
from rampcli.batch.training_plan import StagePlan
from rampcli.errors import UsageError


@st.composite
def resumes(draw):
    """Arguments of `plan` for a resumed ramp whose early stages may be too small for the fleet."""
    fleet, micro = (
        fleet_of(draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 4]))),
        draw(st.integers(1, 2)),
    )
    target = micro * fleet.devices * fleet.num_nodes * draw(st.integers(1, 3))
    increment = draw(st.sampled_from([size for size in range(1, target + 1) if target % size == 0]))
    return {
        "rampup": [increment, increment, draw(st.integers(0, 40)) * target],
        "target": target,
        "fleet": fleet,
        "micro": micro,
        "policy": draw(st.sampled_from(["nemo", "best", "fixed"])),
        "consumed_samples": draw(st.integers(0, 45 * target)),
    }


@given(run=resumes())
def test_on_a_resume_only_the_stages_that_are_still_to_come_must_divide(run):
    stages = ramp_of(run).stages
    consumed = run["consumed_samples"]
    ahead = [stage for stage in stages if stage.end_sample is None or stage.end_sample > consumed]
    units = [run["micro"] * run["fleet"].devices * n for n in range(1, run["fleet"].num_nodes + 1)]
    if run["policy"] == "fixed":
        units = units[-1:]
    if not all(any(stage.global_batch_size % unit == 0 for unit in units) for stage in ahead):
        with pytest.raises(UsageError, match=r"\(stage \d+\)"):
            plan(**run)
        return
    planned = plan(**run)
    assert planned.number_of_stages == len(stages)
    assert planned.stage_at(consumed) in planned.stages
    for number, stage in enumerate(stages):
        known = planned.stage(number)
        assert (
            known.stage,
            known.global_batch_size,
            known.first_sample,
            known.samples,
            known.first_step,
            known.steps,
            known.end_sample,
        ) == (
            number,
            stage.global_batch_size,
            stage.first_sample,
            stage.samples,
            stage.first_step,
            stage.steps,
            stage.end_sample,
        )
    if planned.passed:
        last = planned.passed[-1]
        assert last.end_sample <= consumed
        assert not any(last.global_batch_size % unit == 0 for unit in units)


def test_finished_stages_too_small_for_the_fleet_do_not_stop_a_resume():
    ramp, larger = [4, 4, 24], fleet_of(1, 8)
    with pytest.raises(
        UsageError,
        match=r"batches 4 \(stage 0\) and 12 \(stage 2\) are not multiples of 8",
    ):
        plan(ramp, 16, fleet=larger)
    with pytest.raises(UsageError, match=r"batch 12 \(stage 2\) is not"):
        plan(ramp, 16, fleet=larger, consumed_samples=8)
    planned = plan(ramp, 16, fleet=larger, consumed_samples=28)
    assert [
        (stage.stage, stage.global_batch_size, stage.first_sample, stage.samples)
        for stage in planned.passed
    ] == [
        (0, 4, 0, 8),
        (1, 8, 8, 8),
        (2, 12, 16, 12),
    ]
    assert not any(isinstance(stage, StagePlan) for stage in planned.passed)
    assert [
        (stage.stage, stage.global_batch_size, stage.first_sample, stage.world_size)
        for stage in planned.stages
    ] == [(3, 16, 28, 8)]
    assert planned.number_of_stages == 4


def test_the_stage_in_which_a_run_resumes_must_divide():
    with pytest.raises(UsageError, match=r"batch 4 \(stage 0\) is not"):
        plan([4, 4, 24], 8, fleet=fleet_of(1, 8), consumed_samples=20)
    assert plan([4, 4, 24], 8, fleet=fleet_of(1, 8), consumed_samples=24).passed[0].end_sample == 24


def test_a_finished_stage_that_does_not_fit_has_no_plan():
    planned = plan([4, 4, 24], 16, fleet=fleet_of(1, 8), consumed_samples=28)
    assert planned.stage_at(28) is planned.stages[0]
    for consumed in (0, 8, 16, 27):
        with pytest.raises(UsageError) as refusal:
            planned.stage_at(consumed)
        assert (
            refusal.value.message
            == f"the stage after {consumed} samples does not fit 1 nodes of 8 processes"
        )


def test_the_json_of_a_resumed_plan_has_null_where_another_fleet_trained_a_stage():
    document = json.loads(
        json.dumps(plan([4, 4, 24], 16, fleet=fleet_of(1, 8), consumed_samples=28).to_json())
    )
    assert [list(stage) for stage in document["stages"]] == [COUNTS + OF_A_FLEET] * 4
    assert [stage["stage"] for stage in document["stages"]] == [0, 1, 2, 3]
    assert [[stage[key] for key in OF_A_FLEET] for stage in document["stages"]] == [
        [None] * 5
    ] * 3 + [[1, 8, 8, 1, 2]]
    assert [stage["first_sample"] for stage in document["stages"]] == [0, 8, 16, 28]


@pytest.mark.parametrize("policy", ["nemo", "fixed", "best"])
def test_a_finished_largest_batch_does_not_have_to_fit_the_fleet(policy):
    planned = scheduled(
        "samples:0:12 24:8", fleet=fleet_of(1, 8), policy=policy, consumed_samples=24
    )
    assert [stage.global_batch_size for stage in planned.passed] == [12]
    assert [stage.global_batch_size for stage in planned.stages] == [8]


def test_a_finished_batch_that_would_be_decreased_to_zero_does_not_fail_a_resume():
    planned = plan(
        [2, 2, 60],
        16,
        micro=4,
        fleet=fleet_of(1, 1),
        decrease_batch_size_if_needed=True,
        consumed_samples=10**6,
    )
    assert [stage.global_batch_size for stage in planned.passed] == [2]
    assert planned.stages[-1].global_batch_size == 16
