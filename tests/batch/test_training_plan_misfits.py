import json
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.batch.nodes import Fleet
from rampcli.batch.plan import ParallelSizes
from rampcli.batch.ramp import RampSchedule
from rampcli.batch.run_settings import BatchSettings, RampSettings, RunLength
from rampcli.batch.throughput import Throughput
from rampcli.batch.training_plan import PassedStage, plan_training
from rampcli.errors import UsageError

ORACLE = Path(__file__).parent / "oracles" / "rampup.json"
DECREASE = "rampup.decrease_batch_size_if_needed"
LENGTHS = [field.name for field in fields(RunLength)]
COUNTS = ["stage", "global_batch_size", "first_sample", "samples", "first_step", "steps"]
OF_A_FLEET = [
    "num_nodes",
    "world_size",
    "data_parallel_size",
    "micro_batch_size",
    "accumulate_grad_batches",
]


def oracle_case(name):
    cases = json.loads(ORACLE.read_text(encoding="utf-8"))["cases"]
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
    schedule=None,
    **rest,
):
    """Returns a plan; `rest` is its length, ramp and other arguments of `plan_training`."""
    length = {key: rest.pop(key) for key in LENGTHS if key in rest}
    ramp = {
        key: rest.pop(key) for key in ("semantics", "decrease_batch_size_if_needed") if key in rest
    }
    return plan_training(
        batch=BatchSettings(
            global_batch_size=target, micro_batch_size=micro, accumulate_grad_batches=accumulate
        ),
        ramp=RampSettings(rampup_batch_size=rampup, step_batch_size_schedule=schedule, **ramp),
        fleet=fleet,
        node_policy=policy,
        sequence_length=sequence_length,
        length=RunLength(**length),
        **rest,
    )


def scheduled(text, *, fleet, target=None, **rest):
    return plan(None, target, schedule=text, fleet=fleet, **rest)


def ramp_of(run):
    return RampSchedule.from_rampup(run["rampup"], global_batch_size=run["target"])


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
        with pytest.raises(UsageError, match="of the ramp do"):
            plan(**run)
        return
    planned = plan(**run)
    assert planned.number_of_stages == len(stages)
    assert planned.stage_at(consumed) in planned.stages
    for number, stage in enumerate(stages):
        known = planned.stage_number(number)
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
        match=r"stages 0 \(batch size 4\), 2 \(batch size 12\) of the ramp do not divide",
    ):
        plan(ramp, 16, fleet=larger)
    with pytest.raises(UsageError, match=r"stage 2 \(batch size 12\) of the ramp does not divide"):
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
    assert all(type(stage) is PassedStage for stage in planned.passed)
    assert [
        (stage.stage, stage.global_batch_size, stage.first_sample, stage.world_size)
        for stage in planned.stages
    ] == [(3, 16, 28, 8)]
    assert planned.number_of_stages == 4


def test_the_stage_in_which_a_run_resumes_must_divide():
    with pytest.raises(UsageError, match=r"stage 0 \(batch size 4\) of the ramp does not divide"):
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


def test_decreased_stages_run_the_steps_of_megatron_and_are_noted():
    case = oracle_case("mbs_dp_not_dividing_mid_decrease")
    given = case["input"]
    planned = plan(
        given["rampup_batch_size"],
        given["global_batch_size"],
        micro=given["micro_batch_size"],
        fleet=fleet_of(1, given["data_parallel_size"]),
        decrease_batch_size_if_needed=True,
    )
    assert [
        (
            stage.global_batch_size,
            stage.accumulate_grad_batches,
            stage.first_sample,
            stage.first_step,
            stage.steps,
        )
        for stage in planned.stages
    ] == [
        (
            stage["running_global_batch_size"],
            stage["num_microbatches"],
            stage["first_consumed_samples"],
            stage["first_iteration"],
            stage["steps"],
        )
        for stage in case["megatron_legacy"]["stages"]
    ]
    assert planned.notes == (
        f"decreased to whole micro batches on every rank ({DECREASE}): 6 to 4, 10 to 8",
    )


def test_a_batch_that_megatron_would_decrease_to_zero_is_refused():
    case = oracle_case("mbs_dp_gt_start_decrease")
    given = case["input"]
    assert case["megatron_legacy"]["error"]["type"] == "SilentZeroMicrobatches"
    with pytest.raises(UsageError) as refusal:
        plan(
            given["rampup_batch_size"],
            given["global_batch_size"],
            micro=given["micro_batch_size"],
            fleet=fleet_of(1, given["data_parallel_size"]),
            decrease_batch_size_if_needed=True,
        )
    assert (
        refusal.value.message == "batch size 2 would be decreased to nothing:"
        " data.micro_batch_size=4 on 1 node takes at least 4 samples"
    )
    assert refusal.value.remedy == "batch sizes of at least 4, or a smaller data.micro_batch_size"


@st.composite
def decreased_runs(draw):
    """Arguments of `plan` for a ramp that fills at least a micro batch on every rank of a node."""
    fleet, micro = (
        fleet_of(draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 4]))),
        draw(st.integers(1, 3)),
    )
    nodes = draw(st.sampled_from([1, fleet.num_nodes]))
    start, increment, increments = (
        draw(st.integers(1, 30)),
        draw(st.integers(1, 9)),
        draw(st.integers(0, 6)),
    )
    start += micro * fleet.devices * nodes
    return {
        "rampup": [start, increment, draw(st.integers(1, 4000))],
        "target": start + increment * increments,
        "fleet": fleet,
        "micro": micro,
        "policy": draw(st.sampled_from(["nemo", "best"])) if nodes == 1 else "fixed",
    }


@given(run=decreased_runs())
def test_a_batch_is_decreased_only_if_no_nodes_fit_and_as_little_as_possible(run):
    planned = plan(**run, decrease_batch_size_if_needed=True)
    units = [run["micro"] * run["fleet"].devices * n for n in range(1, run["fleet"].num_nodes + 1)]
    if run["policy"] == "fixed":
        units = units[-1:]
    for stage, walked in zip(planned.stages, planned.ramp.stages, strict=True):
        size = walked.scheduled_batch_size
        assert size == ramp_of(run).global_batch_size_at(stage.first_sample)
        assert (
            stage.global_batch_size
            == walked.global_batch_size
            == max(size - size % unit for unit in units)
        )
        assert (
            stage.micro_batch_size * stage.data_parallel_size * stage.accumulate_grad_batches
            == stage.global_batch_size
        )


@given(run=decreased_runs(), restart_s=st.floats(0, 100), always=st.booleans())
def test_best_is_never_slower_than_nemo_with_decreased_batches(run, restart_s, always):
    settings = {
        "throughput": Throughput(points=((1, 10.0),), basis=""),
        "restart_s": restart_s,
        "restarts_always": always,
    }
    best, nemo = (
        plan(
            **run | {"policy": policy},
            decrease_batch_size_if_needed=True,
            max_samples=5000,
            **settings,
        )
        for policy in ("best", "nemo")
    )
    seconds = [
        sum(map(one.stage_s, one.stages)) + restart_s * one.restarts() for one in (best, nemo)
    ]
    if [stage.global_batch_size for stage in best.stages] == [
        stage.global_batch_size for stage in nemo.stages
    ]:
        assert seconds[0] <= seconds[1] * (1 + 1e-9)


@given(run=decreased_runs())
def test_decreased_stages_count_the_samples_that_they_run_and_are_noted(run):
    planned = plan(**run, decrease_batch_size_if_needed=True)
    for stage, following in pairwise(planned.stages):
        assert stage.first_sample + stage.steps * stage.global_batch_size == following.first_sample
    decreased = [
        f"{walked.scheduled_batch_size} to {stage.global_batch_size}"
        for stage, walked in zip(planned.stages, planned.ramp.stages, strict=True)
        if stage.global_batch_size < walked.scheduled_batch_size
    ]
    noted = [note.partition(": ")[2].split(", ") for note in planned.notes if DECREASE in note]
    assert noted == ([decreased] if decreased else [])


def test_without_permission_no_batch_is_decreased():
    with pytest.raises(
        UsageError,
        match=r"stages 1 \(batch size 6\), 3 \(batch size 10\) of the ramp do not divide",
    ):
        plan([4, 2, 60], 12, micro=2, fleet=fleet_of(1, 2))


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        (
            {"rampup": [4, 2, 60], "target": 12, "semantics": "maxtext"},
            (DECREASE, "rampup.semantics"),
        ),
        (
            {"rampup": None, "target": None, "schedule": "samples: 0:4 60:12"},
            (DECREASE, "model.step_batch_size_schedule"),
        ),
    ],
    ids=["maxtext", "step schedule"],
)
def test_only_a_ramp_with_megatron_semantics_is_decreased(settings, keys):
    assert plan(**settings, fleet=fleet_of(1, 1)).stages
    with pytest.raises(UsageError) as refusal:
        plan(**settings, fleet=fleet_of(1, 1), decrease_batch_size_if_needed=True)
    assert refusal.value.keys == keys


def test_a_step_schedule_is_planned_stage_by_stage_and_a_shrinking_batch_is_noted():
    planned = scheduled("0:16 640:4 1280:12", fleet=fleet_of(4, 1), max_steps=40)
    assert [
        (
            stage.global_batch_size,
            stage.first_sample,
            stage.first_step,
            stage.steps,
            stage.num_nodes,
        )
        for stage in planned.stages
    ] == [
        (16, 0, 0, 4, 4),
        (4, 64, 4, 16, 4),
        (12, 128, 20, 20, 4),
    ]
    assert planned.notes == ("the batch shrinks, as scheduled: 16 to 4 at sample 64",)


def test_a_batch_that_is_scheduled_twice_is_refused():
    with pytest.raises(UsageError) as refusal:
        plan([4, 4, 24], 16, schedule="0:4 240:16", fleet=fleet_of(1, 1))
    assert refusal.value.keys == ("model.rampup_batch_size", "model.step_batch_size_schedule")


def test_the_last_size_of_a_step_schedule_is_the_global_batch_size():
    assert scheduled("0:4 240:16", fleet=fleet_of(1, 1)).global_batch_size == 16
    assert scheduled("0:4 240:16", target=16, fleet=fleet_of(1, 1)).global_batch_size == 16
    with pytest.raises(UsageError, match=r"ends at 16, but model\.global_batch_size=32") as refusal:
        scheduled("0:4 240:16", target=32, fleet=fleet_of(1, 1))
    assert refusal.value.remedy == "model.global_batch_size=16, or null"


def test_every_size_of_a_step_schedule_must_divide_and_the_refusal_is_about_the_schedule():
    with pytest.raises(
        UsageError, match=r"stage 1 \(batch size 6\) of the ramp does not divide"
    ) as refusal:
        scheduled("0:4 240:6 480:16", micro=2, fleet=fleet_of(1, 2))
    assert refusal.value.keys[0] == "model.step_batch_size_schedule"


@pytest.mark.parametrize("policy", ["nemo", "fixed", "best"])
def test_a_finished_largest_batch_does_not_have_to_fit_the_fleet(policy):
    planned = scheduled(
        "samples:0:12 24:8", fleet=fleet_of(1, 8), policy=policy, consumed_samples=24
    )
    assert [stage.global_batch_size for stage in planned.passed] == [12]
    assert [stage.global_batch_size for stage in planned.stages] == [8]


@pytest.mark.parametrize("consumed_samples", [0, 960])
def test_a_size_that_never_runs_does_not_have_to_fit(consumed_samples):
    text = "samples: 0:96 903:176 926:32 3263:64"
    planned = scheduled(
        text,
        micro=2,
        fleet=fleet_of(2, 8),
        policy="fixed",
        max_samples=9000,
        consumed_samples=consumed_samples,
    )
    assert [stage.global_batch_size for stage in planned.stages] == [96, 32, 64]
    assert [note for note in planned.notes if note.startswith("skipped")]


def test_a_size_of_a_step_schedule_is_refused_as_a_stage_with_a_remedy():
    with pytest.raises(UsageError) as refusal:
        scheduled("samples: 0:16 1000:128", micro=4, fleet=fleet_of(9, 2))
    assert refusal.value.message.startswith("stage 1 (batch size 128) of the ramp does not divide ")
    assert refusal.value.keys[0] == "model.step_batch_size_schedule"
    assert "model.global_batch_size" not in refusal.value.remedy


@given(
    micro=st.integers(1, 6),
    ranks=st.integers(1, 20),
    accumulate=st.integers(1, 6),
    target=st.integers(1, 400),
)
def test_every_suggestion_for_an_accumulation_that_does_not_fit_works(
    micro, ranks, accumulate, target
):
    given_ = {"micro": micro, "fleet": fleet_of(ranks, 1), "policy": "fixed"}
    if target == micro * ranks * accumulate:
        plan(None, target, accumulate=accumulate, **given_)
        return
    with pytest.raises(UsageError) as refusal:
        plan(None, target, accumulate=accumulate, **given_)
    for way in refusal.value.remedy.split(", or "):
        key, _, number = way.partition("=")
        plan(
            None,
            int(number) if key == "model.global_batch_size" else target,
            accumulate=int(number) if key == "trainer.accumulate_grad_batches" else accumulate,
            **given_,
        )


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


@pytest.mark.parametrize("policy", ["nemo", "best"])
def test_a_given_accumulation_applies_to_the_largest_batch_in_any_stage(policy):
    with pytest.raises(
        UsageError, match=r"trainer\.accumulate_grad_batches=7 = 7, but model\.global_batch_size=16"
    ):
        scheduled("samples:0:16 64:8", fleet=fleet_of(1, 1), accumulate=7, policy=policy)
    assert (
        scheduled("samples:0:16 64:8", fleet=fleet_of(1, 1), accumulate=16, policy=policy)
        .stages[0]
        .accumulate_grad_batches
        == 16
    )


def test_sizes_skipped_at_a_shared_threshold_count_for_nemo_and_are_noted():
    planned = plan([352, 96, 2], 1024, micro=4, fleet=fleet_of(16, 8), max_samples=10**6)
    assert [(stage.global_batch_size, stage.num_nodes) for stage in planned.stages] == [
        (352, 1),
        (1024, 16),
    ]
    assert "448, 544, 640, 736, 832, 928" in planned.notes[0]


def test_the_multiples_that_are_suggested_under_nemo_satisfy_the_launcher():
    with pytest.raises(UsageError) as refusal:
        plan([1, 1, 10], 2, fleet=fleet_of(1, 4, tensor=2))
    assert refusal.value.remedy == "batch sizes that are multiples of 4"
    assert plan([4, 4, 10], 8, fleet=fleet_of(1, 4, tensor=2)).stages


def test_a_single_batch_that_fits_nowhere_is_named_by_its_own_key():
    with pytest.raises(UsageError) as refusal:
        plan(None, 15, fleet=fleet_of(1, 2), policy="best")
    assert refusal.value.keys[0] == "model.global_batch_size"
    assert (
        "model.global_batch_size=15 does not divide on any number of nodes" in refusal.value.message
    )
