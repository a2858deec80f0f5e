import json
import re
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.batch.nodes import Fleet
from rampcli.batch.plan import BatchPlan, ParallelSizes
from rampcli.batch.ramp import RampSchedule
from rampcli.batch.run_settings import BatchSettings, RampSettings, RunLength
from rampcli.batch.throughput import Throughput
from rampcli.batch.training_plan import StagePlan, plan_training
from rampcli.errors import UsageError, UsageErrors

ORACLES = Path(__file__).parent / "oracles"
LENGTHS = [field.name for field in fields(RunLength)]
DOCUMENTED_KEYS = [
    "stage",
    "global_batch_size",
    "first_sample",
    "samples",
    "first_step",
    "steps",
    "num_nodes",
    "world_size",
    "data_parallel_size",
    "micro_batch_size",
    "accumulate_grad_batches",
]
MEASURED = Throughput(points=((1, 900.0), (4, 1000.0)), basis="a test")


def oracle_case(file, name):
    cases = json.loads((ORACLES / file).read_text(encoding="utf-8"))["cases"]
    return next(case for case in cases if case["name"] == name)


def fleet_of(num_nodes, devices, **parallel):
    return Fleet(num_nodes=num_nodes, devices=devices, parallel=ParallelSizes(**parallel))


def plan(
    rampup,
    target,
    *,
    fleet,
    micro=1,
    accumulate=None,
    policy="nemo",
    sequence_length=10,
    semantics="megatron",
    **rest,
):
    """Returns a plan; `rest` is the length of the run and other arguments of `plan_training`."""
    length = {key: rest.pop(key) for key in LENGTHS if key in rest}
    return plan_training(
        batch=BatchSettings(
            global_batch_size=target, micro_batch_size=micro, accumulate_grad_batches=accumulate
        ),
        ramp=RampSettings(rampup_batch_size=rampup, semantics=semantics),
        fleet=fleet,
        node_policy=policy,
        sequence_length=sequence_length,
        length=RunLength(**length),
        **rest,
    )


def sizes_and_nodes(planned):
    return [(stage.global_batch_size, stage.num_nodes) for stage in planned.stages]


@st.composite
def runs(draw):
    """Arguments of `plan` for a ramp that divides on its nodes, and an end."""
    fleet = fleet_of(
        draw(st.integers(1, 4)),
        draw(st.sampled_from([1, 2, 4])),
        tensor=draw(st.sampled_from([1, 2])),
    )
    if fleet.devices % fleet.parallel.tensor:
        fleet = fleet_of(fleet.num_nodes, fleet.devices)
    micro = draw(st.integers(1, 3))
    unit = micro * fleet.devices * fleet.num_nodes
    start, increment, increments = (
        unit * draw(st.integers(1, 3)),
        unit * draw(st.integers(1, 2)),
        draw(st.integers(1, 5)),
    )
    end = draw(st.sampled_from(LENGTHS))
    return {
        "rampup": [start, increment, draw(st.integers(0, 60)) * unit],
        "target": start + increment * increments,
        "fleet": fleet,
        "micro": micro,
        "policy": draw(st.sampled_from(["nemo", "best", "fixed"])),
        "semantics": draw(st.sampled_from(["megatron", "maxtext"])),
        "throughput": draw(st.sampled_from([None, MEASURED])),
        "restart_s": draw(st.sampled_from([0.0, 0.5, 60.0])),
        "restarts_always": draw(st.booleans()),
        end: draw(st.integers(1, 60))
        * {"max_steps": 1, "max_samples": unit, "max_tokens": 10 * unit}[end]
        + draw(st.integers(0, 3)),
    }


def ramp_of(run):
    return RampSchedule.from_rampup(
        run["rampup"], global_batch_size=run["target"], semantics=run["semantics"]
    )


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


@pytest.mark.parametrize(
    ("policy", "wrong"),
    [
        ("fixed", "1 (batch size 6), 3 (batch size 10)"),
        ("best", "1 (batch size 6), 3 (batch size 10)"),
    ],
)
def test_a_stage_on_which_megatron_fails_later_is_refused_before_the_start(policy, wrong):
    case = oracle_case("rampup.json", "mbs_dp_not_dividing_mid")
    given, failed = case["input"], case["megatron_legacy"]["error"]
    assert (failed["phase"], failed["iteration"]) == ("step", 4)
    fleet = fleet_of(1, given["data_parallel_size"])
    with pytest.raises(UsageError) as refusal:
        plan(
            given["rampup_batch_size"],
            given["global_batch_size"],
            micro=given["micro_batch_size"],
            fleet=fleet,
            policy=policy,
        )
    assert refusal.value.message.startswith(f"stages {wrong} of the ramp do not divide ")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("final_not_checked", "model.global_batch_size=1792 or 3584, or "),
        ("coprime_stage", "model.global_batch_size=1024, or "),
    ],
)
def test_a_last_stage_that_the_launcher_does_not_check_is_refused_with_targets_that_fit(
    name, remedy
):
    given = oracle_case("nodes.json", name)["input"]
    fleet = fleet_of(given["num_nodes"], given["gpus_per_node"])
    with pytest.raises(UsageError) as refusal:
        plan(
            given["rampup_batch_size"],
            given["global_batch_size"],
            micro=given["micro_batch_size"],
            fleet=fleet,
        )
    assert refusal.value.remedy.startswith(remedy)
    for target in re.findall(r"\d+", remedy):
        plan(given["rampup_batch_size"], int(target), micro=given["micro_batch_size"], fleet=fleet)


def test_best_is_suggested_for_a_target_that_divides_on_fewer_nodes_alone():
    awkward = {"rampup": [352, 96, 10_000], "target": 640, "micro": 4, "fleet": fleet_of(16, 8)}
    with pytest.raises(UsageError) as refusal:
        plan(**awkward)
    assert refusal.value.remedy.endswith(", or rampup.node_policy=best")
    assert plan(**awkward, policy="best").stages
    with pytest.raises(UsageError) as refusal:
        plan(**(awkward | {"rampup": None, "target": 642}))
    assert "best" not in refusal.value.remedy


def test_context_parallelism_that_nemo_does_not_count_is_still_checked():
    with pytest.raises(
        UsageError, match=r"stage 0 \(batch size 8\) of the ramp does not divide"
    ) as refusal:
        plan([8, 8, 100], 16, fleet=fleet_of(2, 8, context=16))
    assert refusal.value.remedy == "rampup.node_policy=best"
    assert sizes_and_nodes(
        plan([8, 8, 100], 16, fleet=fleet_of(2, 8, context=16), policy="best")
    ) == [(8, 2), (16, 2)]
    planned = plan([8, 8, 100], 16, fleet=fleet_of(2, 8, context=2))
    assert [
        (stage.num_nodes, stage.data_parallel_size, stage.accumulate_grad_batches)
        for stage in planned.stages
    ] == [
        (1, 4, 2),
        (2, 8, 2),
    ]


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
        "skipped, because their share of the ramp is shorter than one batch: 768, 1024, 1280, 1792",
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


def test_two_ends_are_refused_by_name():
    with pytest.raises(UsageError) as refusal:
        plan(None, 16, fleet=fleet_of(1, 1), max_steps=4, max_tokens=640)
    assert (
        refusal.value.message
        == "the run has two ends: trainer.max_steps=4 and trainer.max_tokens=640"
    )
    assert refusal.value.keys == ("trainer.max_steps", "trainer.max_tokens")


@pytest.mark.parametrize("end", ["max_steps", "max_samples", "max_tokens"])
@pytest.mark.parametrize("value", [0, -1])
def test_an_end_below_one_is_refused(end, value):
    with pytest.raises(UsageError) as refusal:
        plan(None, 16, fleet=fleet_of(1, 1), **{end: value})
    assert refusal.value.keys == (f"trainer.{end}",)


def test_all_errors_are_raised_together():
    with pytest.raises(UsageErrors) as refusal:
        plan([4, 5, 24], 16, fleet=fleet_of(1, 1), max_steps=4, max_samples=64)
    assert [error.keys[0] for error in refusal.value.errors] == [
        "trainer.max_steps",
        "model.rampup_batch_size",
    ]
    assert str(refusal.value) == "\n".join(str(error) for error in refusal.value.errors)


def test_a_ramp_and_a_micro_batch_that_are_wrong_are_refused_together():
    with pytest.raises(UsageErrors) as refusal:
        plan([4, 5, 24], 16, micro=0, fleet=fleet_of(1, 1))
    assert {error.keys[0] for error in refusal.value.errors} == {
        "data.micro_batch_size",
        "model.rampup_batch_size",
    }


def test_a_target_and_stages_that_do_not_divide_are_each_refused_once():
    with pytest.raises(UsageErrors) as refusal:
        plan([8, 3, 100], 17, micro=2, fleet=fleet_of(1, 2), policy="fixed")
    whole, stages = refusal.value.errors
    assert (
        whole.message == "model.global_batch_size=17 does not divide into data.micro_batch_size=2"
        " x 2 data-parallel ranks = 4"
    )
    assert stages.message.startswith(
        "stages 1 (batch size 11), 2 (batch size 14) of the ramp do not divide"
    )


def test_a_wrong_ramp_and_a_wrong_end_give_one_refusal_with_exit_code_2():
    with pytest.raises(UsageError) as refusal:
        plan([4], 16, fleet=fleet_of(1, 1), max_steps=0)
    assert refusal.value.exit_code == 2
    assert len(refusal.value.errors) == 2


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
    assert list(document) == ["global_batch_size", "semantics", "sequence_length", "stages"]
    assert (document["global_batch_size"], document["semantics"], document["sequence_length"]) == (
        16,
        "megatron",
        10,
    )
    assert [list(stage) for stage in document["stages"]] == [DOCUMENTED_KEYS] * 4
    assert (document["stages"][-1]["samples"], document["stages"][-1]["steps"]) == (None, None)


@given(run=runs())
def test_the_seconds_of_a_stage_are_its_tokens_over_the_rate_of_its_gpus(run):
    planned = plan(**(run | {"throughput": MEASURED}))
    for stage in planned.stages:
        rate = stage.world_size * MEASURED.tokens_per_s_per_gpu(stage.accumulate_grad_batches)
        assert planned.stage_s(stage) * rate == pytest.approx(
            stage.samples * planned.sequence_length
        )


@given(run=runs())
def test_a_step_loads_each_micro_batch_separately_or_all_at_once_as_in_maxtext(run):
    planned = plan(**run)
    for stage in planned.stages:
        at_once = run["semantics"] == "maxtext"
        assert planned.loads_per_step(stage) == (1 if at_once else stage.accumulate_grad_batches)


def test_the_time_of_an_open_stage_or_without_a_throughput_is_unknown():
    endless = plan([4, 4, 24], 16, fleet=fleet_of(1, 1), throughput=MEASURED)
    assert [endless.stage_s(stage) is None for stage in endless.stages] == [
        False,
        False,
        False,
        True,
    ]
    unknown = plan([4, 4, 24], 16, fleet=fleet_of(1, 1), max_steps=20)
    assert [unknown.stage_s(stage) for stage in unknown.stages] == [None] * 4
    assert (unknown.clock, unknown.restarts()) == (None, 0)


def test_processes_restart_at_every_boundary_or_only_where_the_nodes_change():
    run = {
        "rampup": [256, 256, 10_000_000],
        "target": 2048,
        "micro": 4,
        "fleet": fleet_of(16, 8),
        "throughput": MEASURED,
    }
    assert plan(**run, restarts_always=True).restarts() == 7
    assert plan(**run, restarts_always=False).restarts() == 4


@given(run=runs())
def test_processes_train_until_a_boundary_that_restarts_them(run):
    planned = plan(**run)
    groups = planned.stages_by_processes()
    assert [stage for group in groups for stage in group] == list(planned.stages)
    for stage, ahead in pairwise(planned.stages):
        apart = run["restarts_always"] or stage.world_size != ahead.world_size
        assert planned.ends_processes(stage, ahead.first_sample) is apart
        assert any({stage, ahead} <= set(group) for group in groups) is not apart
        assert not planned.ends_processes(stage, ahead.first_sample - 1)
        if planned.clock is not None:
            assert planned.restarts() == len(groups) - 1


def test_best_keeps_the_nodes_if_a_restart_costs_more_than_it_saves():
    run = {
        "rampup": [8, 8, 64],
        "target": 16,
        "fleet": fleet_of(16, 1),
        "policy": "best",
        "max_samples": 96,
        "throughput": MEASURED,
    }
    assert sizes_and_nodes(plan(**run, restarts_always=False, restart_s=0.0)) == [(8, 8), (16, 16)]
    assert sizes_and_nodes(plan(**run, restarts_always=False, restart_s=1e6)) == [(8, 8), (16, 8)]
    assert sizes_and_nodes(plan(**run, restarts_always=True, restart_s=1e6)) == [(8, 8), (16, 16)]


def test_without_a_throughput_restarts_are_not_weighed_and_best_gives_each_stage_the_most_nodes():
    run = {
        "rampup": [8, 8, 64],
        "target": 16,
        "fleet": fleet_of(16, 1),
        "policy": "best",
        "max_samples": 96,
    }
    assert sizes_and_nodes(plan(**run, restarts_always=False, restart_s=1e6)) == [(8, 8), (16, 16)]


def test_under_best_a_target_need_not_divide_on_all_the_nodes():
    run = {
        "rampup": [352, 96, 10000],
        "target": 640,
        "micro": 4,
        "fleet": fleet_of(16, 8),
        "throughput": MEASURED,
    }
    assert sizes_and_nodes(plan(**run, policy="best")) == [
        (352, 11),
        (448, 14),
        (544, 1),
        (640, 10),
    ]
    with pytest.raises(UsageError, match=r"model\.global_batch_size=640 does not divide"):
        plan(**run, policy="nemo")


def test_a_plan_of_any_number_of_samples_has_as_many_stages_as_its_ramp_has_sizes():
    for samples in (10**6, 10**12, 10**24):
        planned = plan([256, 128, samples], 1024, fleet=fleet_of(1, 8), max_samples=2 * samples)
        assert [stage.global_batch_size for stage in planned.stages] == [
            256,
            384,
            512,
            640,
            768,
            896,
            1024,
        ]
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
