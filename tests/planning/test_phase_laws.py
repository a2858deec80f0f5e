"""Laws of runs in phases that hold for all phases: positions, batches and learning rates."""

from pathlib import Path

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from drawn_phases import (
    SEMANTICS,
    ends,
    planned,
    positions,
    ramps,
    rate_of_step,
    schedules_of_rate,
    simulated,
    steps_of,
)
from rampcli.config import snapshot
from rampcli.planning.run_plan import run_plan
from rampcli.settings.by_key import leaves


@given(
    ramp=st.sampled_from(SEMANTICS).flatmap(lambda one: ramps(semantics=one)),
    rate=schedules_of_rate(),
    end=ends,
    cuts=st.lists(positions(), min_size=1, max_size=3),
)
@settings(max_examples=150)
def test_phases_that_change_nothing_change_nothing(ramp, rate, end, cuts):
    words = [*ramp.words, *rate, f"trainer.{end}", f"rampup.semantics={ramp.semantics}"]
    alone = planned(words)
    goals = []
    for until, unit, count in cuts:
        reached = [
            {"samples": after, "steps": number, "tokens": alone.plan.tokens_at(after)}[unit]
            >= count
            for number, (_, after) in enumerate(steps_of(alone), 1)
        ]
        where = reached.index(True) if True in reached else len(reached)
        goals.append((where, until))
    ordered = [until for _, until in sorted(dict(goals).items())]
    phases = [f"phases.p{at}.until={until}" for at, until in enumerate(ordered)]
    parts = planned([*words, *phases, "phases.last.until=null"])
    assert (parts.plan.end_sample, parts.plan.end_step) == (
        alone.plan.end_sample,
        alone.plan.end_step,
    )
    for number, (before, after) in enumerate(steps_of(alone)):
        assert parts.plan.stage_at(before).global_batch_size == after - before
        assert parts.plan.ramp.global_batch_size_at(before) == after - before
        assert parts.plan.samples_at(number) == before
        assert parts.plan.ramp.steps_to(after) == number + 1
        assert parts.plan.tokens_at(after) == alone.plan.tokens_at(after)
        assert rate_of_step(parts, before, after) == rate_of_step(alone, before, after)


@given(drawn=simulated())
@settings(max_examples=150)
def test_each_step_of_each_phase_is_the_one_that_counting_by_hand_takes(drawn):
    words, taken = drawn
    plan, before, tokens = planned(words).plan, 0, 0
    for number, (name, length, at) in enumerate(taken):
        size = at["samples"] - before
        assert plan.phase_at(before).name == name
        assert plan.stage_at(before).global_batch_size == size
        assert plan.ramp.global_batch_size_at(before) == size
        assert (plan.samples_at(number), plan.samples_at(number + 1)) == (before, at["samples"])
        assert plan.ramp.steps_to(at["samples"]) == number + 1
        assert plan.tokens_at(at["samples"]) - tokens == size * length
        before, tokens = at["samples"], at["tokens"]
    assert (plan.end_sample, plan.end_step, plan.end_tokens) == (before, len(taken), tokens)


@given(drawn=simulated(), rate=schedules_of_rate())
@settings(max_examples=30)
def test_workers_plan_from_the_snapshot_what_the_command_planned(drawn, rate):
    words, taken = drawn
    run = planned([*words, *rate])
    tree = yaml.safe_load(snapshot.to_yaml(run.config))
    config = snapshot.config_in(tree, Path("config.yaml"))
    assert dict(leaves(config)) == dict(leaves(run.config))
    for consumed in (0, taken[len(taken) // 2][2]["samples"], run.plan.end_sample):
        again = run_plan(config, consumed_samples=consumed)
        assert again.plan == run.plan
        assert [one.reading for one in again.phases] == [one.reading for one in run.phases]
        assert [one.rate for one in again.phases] == [one.rate for one in run.phases]
