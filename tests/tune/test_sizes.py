from dataclasses import asdict
from pathlib import Path

import pytest

from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.planning.resolve import resolve
from rampcli.planning.run_plan import run_plan
from rampcli.tune.sizes import (
    candidates,
    own_candidate,
    run_of_phase,
    timed_micro_batches,
    trial_config,
)


def tiny(*words):
    return resolve(apply_overrides(llm.from_factory("llama3_tiny"), words))


def sizes(resolved):
    return [candidate.micro_batch_size for candidate in candidates(resolved)]


@pytest.mark.parametrize("own", [(), ("phases.c.model.rampup_batch_size=[8,8,80]",)])
def test_a_phase_as_a_run_has_the_stages_and_the_samples_that_it_has_in_the_run(own):
    run = tiny(
        *("model.rampup_batch_size=[8,8,480]", "model.global_batch_size=32", "trainer.devices=1"),
        *("phases.a.until=samples:80", "phases.b.until=samples:300", "phases.c.until=samples:480"),
        *("phases.b.data.sequence_length=64", "phases.c.parallel.tensor_parallel_size=2", *own),
    )
    varying = ("stage", "first_sample", "first_step")
    for phase in run.phases:
        alone = run_of_phase(run, phase.plan.name)
        expected = [{**asdict(one), **dict.fromkeys(varying)} for one in phase.plan.stages]
        assert [{**asdict(one), **dict.fromkeys(varying)} for one in alone.plan.stages] == expected
        assert alone.plan.sequence_length == phase.plan.sequence_length
        assert alone.run_dir == run.run_dir / "tune" / f"phase={phase.plan.name}"
        again = run_plan(alone.config)  # as the job of a search plans it
        assert again.plan == alone.plan


def test_the_only_phase_of_a_run_need_not_be_named():
    assert run_of_phase(tiny("phases.a.until=samples:80"), None).plan.end_sample == 80


def test_candidates_divide_every_stage_of_the_ramp():
    ramp = ["model.rampup_batch_size=[8,8,80]", "model.global_batch_size=32"]
    one_node = ["trainer.num_nodes=1", "data.micro_batch_size=2", "rampup.node_policy=fixed"]
    assert sizes(tiny(*ramp, *one_node)) == [1, 2, 4, 8]
    without = ["model.rampup_batch_size=null", *ramp[1:], *one_node]
    assert sizes(tiny(*without)) == [1, 2, 4, 8, 16, 32]


def test_an_accumulation_that_is_set_does_not_limit_the_candidates():
    words = ["model.rampup_batch_size=null", "trainer.num_nodes=1"]
    given = ["trainer.accumulate_grad_batches=4", "data.micro_batch_size=2"]
    assert sizes(tiny(*words, *given, "model.global_batch_size=8")) == [
        1,
        2,
        4,
        8,
    ]


def test_a_size_that_changes_the_batch_by_a_reference_is_no_candidate():
    words = ["model.rampup_batch_size=null", "trainer.num_nodes=1", "data.micro_batch_size=4"]
    assert 8 in sizes(tiny(*words, "model.global_batch_size=16"))
    referring = "model.global_batch_size='${multiply:${data.micro_batch_size},4}'"
    assert sizes(tiny(*words, referring)) == [4]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        # The batch follows from the micro batch and the accumulation: 4 x 1 rank x 8.
        (
            [
                "model.rampup_batch_size=null",
                "model.global_batch_size=null",
                "trainer.accumulate_grad_batches=8",
            ],
            [1, 2, 4, 8, 16, 32],
        ),
        # A step of 10 samples takes 8, since 10 do not divide into micro batches of 4.
        (
            [
                "model.rampup_batch_size=[4,6,80]",
                "model.global_batch_size=16",
                "rampup.decrease_batch_size_if_needed=true",
            ],
            [4],
        ),
    ],
    ids=["derived", "decreased"],
)
def test_candidates_train_the_batches_of_the_run(words, found):
    own = tiny("trainer.num_nodes=1", "data.micro_batch_size=4", *words)
    assert sizes(own) == found
    largest = own_candidate(own).stage.global_batch_size
    assert {candidate.stage.global_batch_size for candidate in candidates(own)} == {largest}


def test_micro_batches_that_vary_are_tried_once_each_up_to_the_share_of_the_largest_stage():
    ramp = ["model.rampup_batch_size=[8,4,80]", "model.global_batch_size=12"]
    varying = ["rampup.micro_batch=largest", "data.micro_batch_size=4", "trainer.num_nodes=2"]
    found = candidates(tiny(*ramp, *varying))
    assert [candidate.micro_batch_size for candidate in found] == [1, 2, 3, 6]
    assert [candidate.stage.micro_batch_size for candidate in found] == [1, 2, 3, 6]


def test_pipeline_parts_limit_the_candidates():
    words = ["model.rampup_batch_size=null", "trainer.devices=2", "model.num_layers=2"]
    pipeline = ["parallel.pipeline_parallel_size=2", "parallel.num_pipeline_microbatches=4"]
    batch = ["data.micro_batch_size=4", "model.global_batch_size=16", "trainer.num_nodes=1"]
    assert sizes(tiny(*words, *pipeline, *batch)) == [4, 8, 16]


@pytest.mark.parametrize(
    ("accumulation", "unit", "timed"),
    [
        (1, 1, (1,)),
        (8, 1, (8,)),
        (9, 1, (1, 8)),
        (64, 1, (1, 8)),
        (64, 4, (4, 8)),
        (64, 16, (16, 32)),
        (3, 4, (3,)),
    ],
)
def test_long_steps_are_timed_by_two_short_ones(accumulation, unit, timed):
    assert timed_micro_batches(accumulation, unit=unit) == timed


@pytest.mark.parametrize("words", [[], ["rampup.nodes=[1,1,1,2]"]])
def test_a_trial_trains_its_size_on_the_ranks_of_the_largest_stage(words):
    resolved = tiny(*words)
    for candidate in candidates(resolved):
        (stage,) = run_plan(trial_config(resolved, candidate, Path("trial"))).plan.stages
        assert stage.micro_batch_size == candidate.micro_batch_size
        assert stage.world_size == candidate.stage.world_size == 2
        assert stage.accumulate_grad_batches == candidate.timed[-1]
        assert stage.end_sample is not None
