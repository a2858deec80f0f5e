import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import plans
from rampcli.config.phases import PhaseSettings
from rampcli.planning.phase_rates import rates_of_phases
from rampcli.schedule.couplings import BATCH_COUPLINGS
from rampcli.schedule.learning_rate import DECAY_STYLES, WSD_SHARE, LearningRate
from rampcli.settings.config import Config

FALLING = ["linear", "cosine", "quarter_cosine", "wsd"]
STYLES = list(DECAY_STYLES)
PEAKS = st.floats(1e-6, 1.0)
SHARES = st.floats(0, 1)
SAMPLES = st.integers(1, 10**9)


def rate(decay_style="constant", **settings):
    defaults = {
        "peak": 1.0,
        "floor": 0.0,
        "warmup_samples": 0,
        "end_sample": None,
        "wsd_decay_samples": None,
        "batch_coupling": "none",
        "first_batch_size": 16,
        "largest_batch_size": 16,
    }
    return LearningRate(decay_style=decay_style, **(defaults | settings))


def plan(rampup, target, **settings):
    return plans.plan(rampup, target, fleet=plans.fleet_of(1, 1), policy="fixed", **settings)


OF_OPTIM = {"peak": "lr", "floor": "min_lr"}
SETTINGS = ("lr", "min_lr", "warmup_samples", "warmup_steps")


def over(planned, decay_style="cosine", **given):
    """Returns the schedule of a run that is one phase, from its settings."""
    config = Config()
    for name, value in ({"peak": 1.0, "floor": 0.0} | given).items():
        key = OF_OPTIM.get(name, name)
        setattr(config.optim if key in SETTINGS else config.schedule, key, value)
    config.schedule.decay_style = decay_style
    (rate,) = rates_of_phases([PhaseSettings(name=None, until=None, config=config)], planned)
    return rate


@st.composite
def falling(draw):
    """A learning rate that falls to its floor after a warm-up shorter than the run."""
    warmup, decaying = draw(st.integers(1, 10**6)), draw(st.integers(100, 10**7))
    peak = draw(PEAKS)
    return rate(
        draw(st.sampled_from(FALLING)),
        peak=peak,
        floor=peak * draw(SHARES),
        warmup_samples=warmup,
        end_sample=warmup + decaying,
        wsd_decay_samples=draw(st.integers(1, decaying)),
    )


@pytest.mark.parametrize("style", STYLES)
@given(warmup=st.integers(1, 10**9), share=SHARES, peak=PEAKS)
def test_the_rate_rises_linearly_over_samples_to_the_peak_at_the_end_of_the_warmup(
    style, warmup, share, peak
):
    schedule = rate(
        style, peak=peak, warmup_samples=warmup, end_sample=2 * warmup, wsd_decay_samples=warmup
    )
    consumed = int(share * warmup)
    assert schedule.at(consumed, global_batch_size=16) == pytest.approx(peak * consumed / warmup)
    assert schedule.at(warmup, global_batch_size=16) == pytest.approx(peak)


@pytest.mark.parametrize("style", STYLES)
@given(warmup=st.integers(1000, 10**9))
def test_the_rate_does_not_jump_where_the_warmup_ends(style, warmup):
    schedule = rate(
        style, warmup_samples=warmup, end_sample=3 * warmup, wsd_decay_samples=2 * warmup
    )
    for consumed in (warmup - 1, warmup, warmup + 1):
        assert schedule.at(consumed, global_batch_size=16) == pytest.approx(1.0, abs=2 / warmup)


@given(schedule=falling(), beyond=st.integers(0, 10**9))
def test_a_falling_rate_reaches_its_floor_at_the_end_and_stays_there(schedule, beyond):
    assert schedule.at(schedule.end_sample + beyond, global_batch_size=16) == pytest.approx(
        schedule.floor, rel=1e-9, abs=1e-15
    )


@given(schedule=falling(), one=SHARES, other=SHARES)
def test_after_the_warmup_a_rate_never_rises_and_stays_between_peak_and_floor(schedule, one, other):
    decaying = schedule.end_sample - schedule.warmup_samples
    first, second = sorted(
        schedule.warmup_samples + int(share * decaying) for share in (one, other)
    )
    early, late = (schedule.at(consumed, global_batch_size=16) for consumed in (first, second))
    assert schedule.floor * (1 - 1e-12) <= late <= early * (1 + 1e-12) <= schedule.peak * (1 + 1e-9)


@pytest.mark.parametrize(
    ("style", "quarter", "half"),
    [
        ("linear", 0.75, 0.5),
        ("cosine", (1 + math.sqrt(0.5)) / 2, 0.5),
        ("quarter_cosine", None, math.sqrt(0.5)),
    ],
)
def test_a_decay_follows_its_formula_between_the_warmup_and_the_end(style, quarter, half):
    schedule = rate(style, peak=3.0, floor=1.0, warmup_samples=100, end_sample=500)
    assert schedule.at(200, global_batch_size=16) == pytest.approx(
        1 + 2 * (math.cos(math.pi / 8) if quarter is None else quarter)
    )
    assert schedule.at(300, global_batch_size=16) == pytest.approx(1 + 2 * half)


@pytest.mark.parametrize("style", DECAY_STYLES)
def test_every_style_starts_at_the_peak(style):
    schedule = rate(style, floor=0.25, warmup_samples=100, end_sample=500, wsd_decay_samples=400)
    assert schedule.at(100, global_batch_size=16) == 1.0


@pytest.mark.parametrize("style", STYLES)
@given(consumed=st.integers(1, 500))
def test_only_a_style_that_takes_decay_samples_depends_on_them(style, consumed):
    short, long = (
        rate(style, warmup_samples=100, end_sample=500, wsd_decay_samples=samples)
        for samples in (100, 400)
    )
    if not DECAY_STYLES[style].takes_decay_samples:
        assert short.at(consumed, global_batch_size=16) == long.at(consumed, global_batch_size=16)


@pytest.mark.parametrize("style", STYLES)
def test_only_a_style_that_needs_a_warmup_stays_at_its_floor_without_one(style):
    at_once = rate(style, floor=0.25, end_sample=10**6).at(1, global_batch_size=16)
    assert (at_once == 0.25) == DECAY_STYLES[style].needs_warmup


@given(
    warmup=st.integers(0, 10**6),
    stable=st.integers(1, 10**6),
    decay=st.integers(1, 10**6),
    share=SHARES,
)
def test_warmup_stable_decay_is_constant_and_then_linear_over_its_decay_samples(
    warmup, stable, decay, share
):
    schedule = rate(
        "wsd",
        floor=0.25,
        warmup_samples=warmup,
        end_sample=warmup + stable + decay,
        wsd_decay_samples=decay,
    )
    assert schedule.at(warmup + 1 + int(share * (stable - 1)), global_batch_size=16) == 1.0
    into = int(share * decay)
    assert schedule.at(warmup + stable + into, global_batch_size=16) == pytest.approx(
        1 - 0.75 * into / decay
    )


@given(warmup=st.integers(1, 10**6), rest=st.integers(1, 10**6), more=st.integers(0, 10**6))
def test_a_wsd_decay_longer_than_the_rest_of_the_run_begins_at_the_end_of_the_warmup(
    warmup, rest, more
):
    schedule = rate(
        "wsd", warmup_samples=warmup, end_sample=warmup + rest, wsd_decay_samples=rest + more
    )
    for consumed in (warmup, warmup + rest // 2, warmup + rest):
        assert schedule.at(consumed, global_batch_size=16) == pytest.approx(
            1 - (consumed - warmup) / rest
        )


def test_by_default_wsd_decays_over_the_last_tenth_of_a_run():
    planned = plan(None, 16, max_samples=16_000)
    assert WSD_SHARE == 0.1
    schedule = over(planned, "wsd")
    assert schedule.at(14_400, global_batch_size=16) == 1.0
    assert schedule.at(15_200, global_batch_size=16) == pytest.approx(0.5)
    assert over(planned, "wsd", wsd_decay_samples=8000).at(
        12_000, global_batch_size=16
    ) == pytest.approx(0.5)


@given(warmup=st.integers(1, 10**8), times=st.integers(1, 10**4), peak=PEAKS)
def test_an_inverse_square_root_halves_when_the_samples_quadruple(warmup, times, peak):
    schedule = rate("inverse_sqrt", peak=peak, warmup_samples=warmup)
    early, late = (
        schedule.at(samples, global_batch_size=16)
        for samples in (warmup * times, 4 * warmup * times)
    )
    assert late == pytest.approx(early / 2)


def test_an_inverse_square_root_does_not_fall_below_its_floor():
    schedule = rate("inverse_sqrt", floor=0.1, warmup_samples=100)
    assert schedule.at(100 * 81, global_batch_size=16) == pytest.approx(1 / 9)
    assert [schedule.at(100 * times, global_batch_size=16) for times in (101, 10**6)] == [0.1, 0.1]


@pytest.mark.parametrize("style", ["constant", *FALLING])
@given(consumed=SAMPLES, warmup=st.integers(0, 10**6), peak=PEAKS)
def test_in_a_run_without_end_the_rate_stays_at_its_peak_after_the_warmup(
    style, consumed, warmup, peak
):
    schedule = rate(style, peak=peak, warmup_samples=warmup)
    assert schedule.at(warmup + consumed, global_batch_size=16) == peak


@pytest.mark.parametrize("style", ["constant", *FALLING])
def test_a_run_that_ends_within_its_warmup_never_falls(style):
    schedule = rate(style, warmup_samples=1000, end_sample=500, wsd_decay_samples=50)
    assert [schedule.at(consumed, global_batch_size=16) for consumed in (250, 500, 1000, 2000)] == [
        0.25,
        0.5,
        1.0,
        1.0,
    ]
    at_its_end = rate(style, warmup_samples=1000, end_sample=1000, wsd_decay_samples=100)
    assert [at_its_end.at(consumed, global_batch_size=16) for consumed in (500, 1000, 2000)] == [
        0.5,
        1.0,
        1.0,
    ]


@pytest.mark.parametrize(
    ("coupling", "factors"),
    [("none", (1.0, 1.0, 1.0)), ("sqrt", (0.25, 0.5, 1.0)), ("linear", (1 / 16, 0.25, 1.0))],
)
@pytest.mark.parametrize("style", ["constant", "cosine", "inverse_sqrt"])
def test_a_batch_below_the_target_scales_the_rate_by_its_coupling(coupling, factors, style):
    settings = {"warmup_samples": 100, "end_sample": 10_000, "largest_batch_size": 256}
    coupled, free = rate(style, batch_coupling=coupling, **settings), rate(style, **settings)
    for batch, factor in zip((16, 64, 256), factors, strict=True):
        for consumed in (50, 100, 3000):
            assert coupled.at(consumed, global_batch_size=batch) == pytest.approx(
                factor * free.at(consumed, global_batch_size=batch)
            )


@given(exponent=st.floats(0, 2), batch=st.integers(1, 256), consumed=SAMPLES)
def test_an_exponent_scales_the_rate_by_that_power_of_the_batch(exponent, batch, consumed):
    coupled = rate(batch_coupling=exponent, largest_batch_size=256)
    assert coupled.at(consumed, global_batch_size=batch) == (batch / 256) ** exponent


@pytest.mark.parametrize(("name", "exponent"), [("none", 0.0), ("sqrt", 0.5), ("linear", 1.0)])
@given(batch=st.integers(1, 256))
def test_a_named_coupling_is_an_exponent(name, exponent, batch):
    named, number = (
        rate(batch_coupling=coupling, largest_batch_size=256) for coupling in (name, exponent)
    )
    assert named.at(1000, global_batch_size=batch) == pytest.approx(
        number.at(1000, global_batch_size=batch)
    )


@given(factors=st.lists(st.floats(0.1, 10), min_size=4, max_size=4), style=st.sampled_from(STYLES))
def test_a_listed_factor_scales_the_rate_of_every_step_of_its_stage(factors, style):
    planned = plan([4, 4, 60], 16, max_samples=400)
    settings = {"warmup_samples": 30}
    listed = over(planned, style, lr_factors=factors, **settings)
    plain = over(planned, style, **settings)
    consumed = 0
    while consumed < planned.end_sample:
        stage = planned.stage_at(consumed)
        size = stage.global_batch_size
        for part in range(1, size + 1):  # an update of a step ends before the step
            assert listed.at(consumed + part, global_batch_size=size) == pytest.approx(
                factors[stage.stage] * plain.at(consumed + part, global_batch_size=size)
            )
        consumed += size


def test_a_coupling_never_raises_the_rate_above_its_peak_if_the_batch_shrinks():
    planned = plan(None, None, schedule="samples: 0:16 160:64 800:8", max_samples=1600)
    schedule = over(planned, "constant", batch_coupling="linear")
    rates = [
        schedule.at(stage.end_sample, global_batch_size=stage.global_batch_size)
        for stage in planned.stages
    ]
    assert rates == pytest.approx([schedule.peak * share for share in (1 / 4, 1, 1 / 8)])


def test_a_coupling_does_not_change_the_rate_at_the_target_batch():
    assert {name: coupling.factor(1.0) for name, coupling in BATCH_COUPLINGS.items()} == {
        "none": 1.0,
        "sqrt": 1.0,
        "linear": 1.0,
    }


@pytest.mark.parametrize("style", ["constant", *FALLING, "inverse_sqrt"])
@given(consumed=SAMPLES, one=st.integers(1, 4096), other=st.integers(1, 4096))
def test_without_coupling_the_rate_at_a_sample_does_not_depend_on_the_batch_that_reaches_it(
    style, consumed, one, other
):
    schedule = rate(
        style,
        warmup_samples=1000,
        end_sample=10**9,
        wsd_decay_samples=10**8,
        largest_batch_size=512,
    )
    assert schedule.at(consumed, global_batch_size=one) == schedule.at(
        consumed, global_batch_size=other
    )


@pytest.mark.parametrize("style", ["constant", *FALLING, "inverse_sqrt"])
def test_a_ramp_does_not_stretch_a_schedule_that_is_counted_in_samples(style):
    ramped = plan([16, 16, 6400], 128, max_samples=12_800)
    constant = plan(None, 16, max_samples=ramped.end_sample)
    assert ramped.end_sample == constant.end_sample
    assert ramped.end_step < constant.end_step
    with_ramp, without = (
        over(planned, style, warmup_samples=1280) for planned in (ramped, constant)
    )
    for consumed in range(16, 12_800, 160):
        batch = ramped.stage_at(consumed).global_batch_size
        assert with_ramp.at(consumed, global_batch_size=batch) == without.at(
            consumed, global_batch_size=16
        )


@given(
    first=st.integers(1, 512),
    stairs=st.integers(1, 64),
    peak=PEAKS,
    consumed=st.integers(100, 10**9),
)
def test_the_rate_under_seesaw_depends_only_on_the_root_of_the_batch(first, stairs, peak, consumed):
    schedule = rate(
        "seesaw",
        peak=peak,
        floor=0.0,
        warmup_samples=100,
        end_sample=10**9,
        first_batch_size=first,
        largest_batch_size=10**6,
    )
    assert schedule.at(consumed, global_batch_size=first) == pytest.approx(peak)
    assert schedule.at(consumed, global_batch_size=first * stairs) == pytest.approx(
        peak / math.sqrt(stairs)
    )


def test_over_a_run_seesaw_starts_from_the_first_batch_of_its_plan():
    schedule = over(plan([4, 4, 24], 16, max_samples=160), "seesaw")
    assert (schedule.first_batch_size, schedule.largest_batch_size) == (4, 16)
    assert [schedule.at(40, global_batch_size=size) for size in (4, 16)] == [1.0, 0.5]


@given(steps=st.integers(0, 40), rampup=st.sampled_from([None, [4, 4, 24], [4, 4, 400], [8, 8, 0]]))
def test_a_warmup_in_steps_lasts_the_samples_that_the_ramp_reads_in_them(steps, rampup):
    planned = plan(rampup, 16, max_samples=10_000)
    consumed = 0
    for _ in range(steps):
        consumed += planned.stage_at(consumed).global_batch_size
    assert over(planned, warmup_steps=steps).warmup_samples == consumed
    assert over(planned, warmup_steps=steps) == over(planned, warmup_samples=consumed)


def test_a_rate_over_a_plan_ends_where_the_plan_ends():
    planned = plan([4, 4, 24], 16, max_steps=10)
    assert over(planned).end_sample == planned.end_sample == 28 + 6 * 16
    assert over(planned).at(planned.end_sample, global_batch_size=16) == pytest.approx(
        0.0, abs=1e-15
    )
    assert over(planned).warmup_samples == 0
    assert over(plan([4, 4, 24], 16)).end_sample is None
