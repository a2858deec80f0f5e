"""Plans in which batch sizes that do not fit are decreased."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles import RAMP_CASES
from plans import DECREASE, fleet_of, plan, ramp_of
from rampcli.batch.throughput import Throughput
from rampcli.errors import UsageError


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


def test_decreased_stages_run_the_steps_of_megatron_and_are_noted():
    case = RAMP_CASES["mbs_dp_not_dividing_mid_decrease"]
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
    case = RAMP_CASES["mbs_dp_gt_start_decrease"]
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
        " a step has at least 4 = 4 samples per micro batch x 1 process on 1 node"
    )
    assert refusal.value.remedy == "batch sizes of at least 4, or a smaller data.micro_batch_size"


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
        "throughput": Throughput.constant(10.0, basis=""),
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
