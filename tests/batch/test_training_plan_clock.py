"""Seconds and restarts of a plan, and how they decide the nodes of its stages."""

from itertools import pairwise

import pytest
from hypothesis import given

from plans import MEASURED, fleet_of, plan, runs, sizes_and_nodes
from rampcli.batch.throughput import Throughput
from rampcli.errors import UsageError


@given(run=runs())
def test_the_seconds_of_a_stage_are_its_tokens_over_the_rate_of_its_gpus_if_it_is_known(run):
    planned = plan(**(run | {"throughput": MEASURED}))
    for stage in planned.stages:
        size = stage.micro_batch_size, stage.accumulate_grad_batches
        is_known = size[0] == 1 and size[1] <= 4
        assert (planned.stage_s(stage) is not None) is is_known
        if not is_known:
            continue
        rate = stage.world_size * MEASURED.tokens_per_s_per_gpu(
            stage.accumulate_grad_batches, micro_batch_size=stage.micro_batch_size
        )
        assert planned.stage_s(stage) * rate == pytest.approx(
            stage.samples * planned.sequence_length
        )


@given(run=runs())
def test_a_step_loads_each_micro_batch_separately_or_all_at_once_as_in_maxtext(run):
    planned = plan(**run)
    for stage in planned.stages:
        at_once = run["semantics"] == "maxtext"
        assert planned.of(stage).loads_per_step(stage) == (
            1 if at_once else stage.accumulate_grad_batches
        )


def test_the_time_of_an_open_stage_or_without_a_throughput_is_unknown():
    known = Throughput.constant(900.0, basis="a test")
    endless = plan([4, 4, 24], 16, fleet=fleet_of(1, 1), throughput=known)
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
