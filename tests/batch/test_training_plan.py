import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plans import COUNTS, MEASURED, OF_A_FLEET, fleet_of, plan, ramp_of, runs
from rampcli.batch.plan import BatchPlan
from rampcli.batch.training_plan import StagePlan
from rampcli.errors import UsageError


def steps_from(planned, consumed):
    """Returns (consumed samples, batch) at each step of a trainer that starts at `consumed`."""
    steps = []
    while not planned.is_complete(consumed):
        batch = planned.stage_at(consumed).global_batch_size
        steps.append((consumed, batch))
        consumed += batch
    return steps


@given(run=runs())
def test_every_stage_divides_on_its_own_nodes(run):
    planned = plan(**run)
    for stage in planned.stages:
        assert stage.world_size == stage.num_nodes * run["fleet"].devices
        assert stage.data_parallel_size * run["fleet"].parallel.tensor == stage.world_size
        assert (
            stage.micro_batch_size * stage.data_parallel_size * stage.accumulate_grad_batches
            == stage.global_batch_size
        )
        assert 1 <= stage.num_nodes <= run["fleet"].num_nodes


@given(run=runs())
def test_stages_are_contiguous_from_sample_and_step_zero(run):
    planned = plan(**run)
    sample = step = 0
    for number, stage in enumerate(planned.stages):
        assert (stage.stage, stage.first_sample, stage.first_step) == (number, sample, step)
        assert stage.samples == stage.steps * stage.global_batch_size > 0
        assert stage.end_sample == sample + stage.samples
        sample, step = stage.end_sample, step + stage.steps
    assert planned.end_sample == sample


@given(run=runs())
def test_a_trainer_takes_the_steps_of_the_ramp_until_the_end_and_no_more(run):
    ramp, steps = ramp_of(run), steps_from(plan(**run), 0)
    consumed = 0
    for step, (first, batch) in enumerate(steps):
        assert (first, batch) == (consumed, ramp.global_batch_size_at(consumed))
        assert "max_steps" not in run or step < run["max_steps"]
        assert "max_samples" not in run or first < run["max_samples"]
        assert "max_tokens" not in run or first * 10 < run["max_tokens"]
        consumed += batch
    assert consumed >= run.get("max_samples", 0)
    assert consumed * 10 >= run.get("max_tokens", 0)
    assert len(steps) >= run.get("max_steps", 0)


@given(run=runs(), share=st.floats(0, 1, exclude_max=True))
def test_resuming_mid_ramp_continues_at_the_same_sample(run, share):
    planned = plan(**run)
    whole = steps_from(planned, 0)
    step = int(share * len(whole))
    assert steps_from(planned, planned.ramp.samples_after(step)) == whole[step:]


@given(run=runs(), nodes=st.integers(1, 4))
def test_on_another_world_size_a_stage_keeps_its_global_batch_or_is_refused(run, nodes):
    planned, world = plan(**run), nodes * run["fleet"].devices
    for stage in planned.stages:
        per_micro_step = stage.micro_batch_size * (world // run["fleet"].parallel.tensor)
        if stage.global_batch_size % per_micro_step:
            with pytest.raises(
                UsageError,
                match=f"model.global_batch_size={stage.global_batch_size} does not divide",
            ):
                planned.batch_on(stage, world)
        else:
            batch = planned.batch_on(stage, world)
            assert batch.global_batch_size == stage.global_batch_size
            assert batch.accumulate_grad_batches * per_micro_step == stage.global_batch_size


@given(run=runs())
def test_on_its_planned_world_size_a_stage_is_split_as_planned(run):
    planned = plan(**run)
    for stage in planned.stages:
        assert planned.batch_on(stage, stage.world_size) == BatchPlan(
            global_batch_size=stage.global_batch_size,
            micro_batch_size=stage.micro_batch_size,
            data_parallel_size=stage.data_parallel_size,
            accumulate_grad_batches=stage.accumulate_grad_batches,
        )


def test_a_run_without_end_has_an_open_last_stage_and_is_never_complete():
    planned = plan([4, 4, 24], 16, fleet=fleet_of(1, 1))
    assert [(stage.global_batch_size, stage.steps, stage.samples) for stage in planned.stages] == [
        (4, 2, 8),
        (8, 1, 8),
        (12, 1, 12),
        (16, None, None),
    ]
    assert planned.end_sample is None
    assert planned.stages[-1].end_sample is None
    assert not planned.is_complete(10**30)


def test_the_documented_ramp_of_gpt3_5b_runs_on_the_nodes_of_the_documentation():
    planned = plan([256, 256, 10_000_000], 2048, micro=4, fleet=fleet_of(16, 8), max_steps=75_000)
    assert [stage.num_nodes for stage in planned.stages] == [8, 8, 8, 8, 10, 12, 14, 16]
    assert [stage.accumulate_grad_batches for stage in planned.stages] == [1, 2, 3, 4, 4, 4, 4, 4]
    assert planned.stages[-1].steps == 75_000 - 14_470


@pytest.mark.parametrize("policy", ["nemo", "best", "fixed"])
def test_a_given_accumulation_applies_to_the_target(policy):
    planned = plan([8, 4, 100], 16, micro=2, accumulate=4, fleet=fleet_of(1, 2), policy=policy)
    assert [stage.accumulate_grad_batches for stage in planned.stages] == [2, 3, 4]
    with pytest.raises(
        UsageError, match=r"trainer.accumulate_grad_batches=2 = 8, but model.global_batch_size=16"
    ):
        plan([8, 4, 100], 16, micro=2, accumulate=2, fleet=fleet_of(1, 2), policy=policy)


def test_a_target_is_derived_before_the_ramp_is_planned():
    assert (
        plan([4, 4, 100], None, micro=2, accumulate=4, fleet=fleet_of(1, 2)).global_batch_size == 16
    )


def test_stages_that_a_short_ramp_skips_are_named():
    planned = plan([256, 256, 1000], 2048, fleet=fleet_of(1, 1))
    assert [stage.global_batch_size for stage in planned.stages] == [256, 512, 1536, 2048]
    assert planned.notes == (
        "the ramp skips batch sizes with a share shorter than one batch: 768, 1024, 1280, 1792",
    )


def test_a_run_that_ends_inside_its_ramp_has_a_note():
    planned = plan([4, 4, 24], 16, fleet=fleet_of(1, 1), max_steps=3)
    assert [(stage.global_batch_size, stage.steps) for stage in planned.stages] == [(4, 2), (8, 1)]
    assert planned.notes == ("the run ends before the ramp reaches its target 16",)


@pytest.mark.parametrize(
    ("length", "notes"),
    [
        ({"max_samples": 64}, ()),
        (
            {"max_samples": 60},
            ("a run ends with a whole step: 64 samples, not trainer.max_samples=60",),
        ),
        ({"max_tokens": 640}, ()),
        (
            {"max_tokens": 631},
            ("a run ends with a whole step: 640 tokens, not trainer.max_tokens=631",),
        ),
        ({"max_steps": 4}, ()),
    ],
)
def test_a_run_ends_with_a_whole_step_and_notes_the_difference(length, notes):
    planned = plan(None, 16, fleet=fleet_of(1, 1), **length)
    assert (planned.stages[0].steps, planned.end_sample, planned.notes) == (4, 64, notes)


@given(run=runs())
def test_a_plan_resumed_on_its_own_fleet_is_the_same_plan(run):
    planned = plan(**run)
    for consumed, _ in steps_from(planned, 0):
        resumed = plan(**run, consumed_samples=consumed)
        assert resumed.stages == planned.stages
        assert resumed.passed == ()


@given(run=runs())
def test_the_json_of_a_plan_has_every_field_of_its_stages(run):
    planned = plan(**run)
    stages = json.loads(json.dumps(planned.to_json()))["stages"]
    assert tuple(StagePlan(**stage) for stage in stages) == planned.stages


def test_the_json_of_a_plan_has_the_documented_keys_and_null_in_an_open_stage():
    document = json.loads(
        json.dumps(plan([4, 4, 24], 16, fleet=fleet_of(1, 1), throughput=MEASURED).to_json())
    )
    keys = ["global_batch_size", "semantics", "sequence_length", "restarts_always", "stages"]
    assert list(document) == keys
    assert (document["global_batch_size"], document["semantics"], document["sequence_length"]) == (
        16,
        "megatron",
        10,
    )
    assert [list(stage) for stage in document["stages"]] == [COUNTS + OF_A_FLEET] * 4
    assert (document["stages"][-1]["samples"], document["stages"][-1]["steps"]) == (None, None)


def test_a_plan_of_any_number_of_samples_has_as_many_stages_as_its_ramp_has_sizes():
    for samples in (10**6, 10**12, 10**24):
        planned = plan([256, 128, samples], 1024, fleet=fleet_of(1, 8), max_samples=2 * samples)
        assert [stage.global_batch_size for stage in planned.stages] == [*range(256, 1025, 128)]
        assert 0 <= planned.end_sample - 2 * samples < 1024


def test_a_stage_of_a_plan_has_its_batch_first_sample_steps_and_end():
    planned = plan([256, 128, 50_000_000], 1024, fleet=fleet_of(1, 8))
    stage = planned.stage_at(8_333_568 + 384)
    assert (
        stage.global_batch_size,
        stage.stage,
        stage.first_sample,
        stage.steps,
        stage.end_sample,
    ) == (
        384,
        1,
        8_333_568,
        21_701,
        16_666_752,
    )
