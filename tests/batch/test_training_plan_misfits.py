"""Plans that do not fit, and the refusals."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles import NODE_CASES, RAMP_CASES
from plans import fleet_of, plan, scheduled, sizes_and_nodes
from rampcli.batch.plan import ACCUMULATE_KEY, GLOBAL_KEY, MICRO_KEY
from rampcli.errors import UsageError, UsageErrors
from remedies import offers


@pytest.mark.parametrize("policy", ["fixed", "best"])
def test_a_stage_on_which_megatron_fails_later_is_refused_before_the_start(policy):
    case = RAMP_CASES["mbs_dp_not_dividing_mid"]
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
    assert refusal.value.message.startswith(
        "batches 6 (stage 1) and 10 (stage 3) are not multiples of 4 = "
    )


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
    given = NODE_CASES[name]["input"]
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
    with pytest.raises(UsageError, match=r"batch 8 \(stage 0\) is not a multiple") as refusal:
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
        "batches 11 (stage 1) and 14 (stage 2) are not multiples of 4 = "
    )


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
    assert [note for note in planned.notes if note.startswith("the ramp skips")]


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
    for offer in offers(refusal.value):
        [(key, number)] = offer.items()
        plan(
            None,
            number if key == GLOBAL_KEY else target,
            accumulate=number if key == ACCUMULATE_KEY else accumulate,
            **given_ | ({"micro": number} if key == MICRO_KEY else {}),
        )


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
    assert refusal.value.message.startswith("model.global_batch_size=15 is not a multiple of 2 = ")
