"""Laws of the learning rate of runs in phases."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drawn_phases import planned, ramps, rate_of_step, schedules_of_rate, steps_of
from rampcli.errors import UsageError
from rampcli.extend import decay_style
from rampcli.plugins import extensions

LONG_AND_SHORT = (
    *("model.global_batch_size=6", "model.rampup_batch_size=null", "schedule.decay_style=linear"),
    *("optim.warmup_steps=null", "optim.warmup_samples=50", "optim.lr=1e-3", "optim.min_lr=0"),
    *("phases.short.until=steps:40", "phases.short.data.sequence_length=32"),
    *("phases.long.until=steps:70", "phases.long.data.sequence_length=96"),
    "phases.long.model.global_batch_size=2",
)


@pytest.mark.parametrize("coupling", ["none", "sqrt"])
def test_a_schedule_of_the_run_counts_the_tokens_of_samples_of_any_length(coupling):
    run = planned([*LONG_AND_SHORT, f"schedule.batch_coupling={coupling}"])
    warmup, end = 50 * 32, run.plan.end_tokens
    for before, after in steps_of(run):
        tokens = run.plan.tokens_at(after)
        expected = 1e-3 * min(tokens / warmup, (end - tokens) / (end - warmup))
        assert rate_of_step(run, before, after) == pytest.approx(expected, abs=1e-12)


def test_a_coupling_compares_the_tokens_of_batches():
    words = ["schedule.batch_coupling=linear", "phases.long.model.global_batch_size=6"]
    run = planned([*LONG_AND_SHORT, *words])
    factors = [
        run.of(stage).rate.factor_at(stage.end_sample, global_batch_size=6)
        for stage in run.plan.stages
    ]
    assert factors == [pytest.approx(1 / 3), 1.0]


def test_an_extension_counts_samples_and_is_refused_if_they_differ_in_length(monkeypatch):
    monkeypatch.setattr(extensions, "REGISTERED", {})
    decay_style("counted")(lambda _, step: step.consumed_samples)
    words = [*LONG_AND_SHORT, "schedule.decay_style=counted"]
    with pytest.raises(UsageError, match="=counted counts samples, which differ in length"):
        planned(words)
    run = planned([*words, "phases.long.data.sequence_length=32"])
    begun = run.plan.phases[1].first.samples
    assert rate_of_step(run, begun, begun + 2) == begun + 2
    own = "phases.long.schedule.decay_style=counted"
    run = planned([*LONG_AND_SHORT, own])
    assert rate_of_step(run, begun, begun + 2) == 2


@given(
    ramp=ramps(),
    warmup=st.integers(0, 20),
    decay_steps=st.integers(1, 20),
    coupling=st.sampled_from(("none", "sqrt")),
)
def test_a_constant_rate_and_a_linear_phase_are_warmup_stable_decay(
    ramp, warmup, decay_steps, coupling
):
    words = [
        *ramp.words,
        f"optim.warmup_steps={warmup}",
        "optim.warmup_samples=null",
        "trainer.max_steps=41",
        f"schedule.batch_coupling={coupling}",
    ]
    stable = planned([*words, "schedule.decay_style=constant"]).plan
    begin, end = stable.samples_at(41 - decay_steps), stable.end_sample
    alone = planned(
        [*words, "schedule.decay_style=wsd", f"schedule.wsd_decay_samples={end - begin}"]
    )
    parts = planned(
        [
            *words,
            "schedule.decay_style=constant",
            f"phases.stable.until=steps:{41 - decay_steps}",
            "phases.decay.until=null",
            "phases.decay.schedule.decay_style=linear",
        ]
    )
    for before, after in steps_of(alone):
        expected = rate_of_step(alone, before, after)
        assert rate_of_step(parts, before, after) == pytest.approx(expected, rel=1e-9, abs=1e-15)


@given(
    words=schedules_of_rate(),
    ramp=ramps(),
    cut=st.integers(1, 40),
    warmup=st.sampled_from(
        (
            (),
            ("optim.warmup_steps=7", "optim.warmup_samples=null"),
            ("optim.warmup_steps=null", "optim.warmup_samples=33"),
        )
    ),
)
def test_a_schedule_of_a_phase_begins_at_the_last_rate_or_restarts(words, ramp, cut, warmup):
    common = [
        *ramp.words,
        *words,
        "schedule.batch_coupling=none",
        "trainer.max_steps=60",
        f"phases.a.until=steps:{cut}",
    ]
    own = [f"phases.b.{word}" for word in ("until=null", *warmup, "schedule.decay_style=constant")]
    for begin in ("continue", "restart"):
        run = planned([*common, *own, f"phases.b.schedule.begin={begin}"])
        first = run.plan.phases[1].first
        steps = list(steps_of(run))
        before = rate_of_step(run, *steps[cut - 1])
        peak = before if begin == "continue" and not warmup else run.config.optim.lr
        start = before if begin == "continue" else 0.0
        after_warmup = 0
        if warmup:
            after_warmup = 33 if "33" in warmup[1] else steps[min(cut + 6, 59)][1] - first.samples
        for one in steps[cut:]:
            read = one[1] - first.samples
            expected = (
                peak if read >= after_warmup else start + (peak - start) * read / after_warmup
            )
            assert rate_of_step(run, *one) == pytest.approx(expected, rel=1e-9)
