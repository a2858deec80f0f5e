import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.batch.ramp import RampSchedule, StageExtent, Threshold
from rampcli.cbs.measured import (
    BLOCKS,
    CriticalBatch,
    critical_batch_at,
    doubling_ramp,
    from_sample,
    read_measurements,
    read_noise,
    samples_beyond,
)
from rampcli.runs.directory import RunDirectory
from run_files import metrics_row

END = 10_000
STAGE = {"stage": 0, "samples": 400, "first_step": 0, "steps": 20}
MEASURED = st.lists(
    st.builds(CriticalBatch, st.integers(0, END - 1), st.floats(1, 5000), st.booleans()),
    max_size=6,
    unique_by=lambda one: one.consumed_samples,
).map(lambda found: sorted(found, key=lambda one: one.consumed_samples))


def sizes(measured, **limits):
    return [
        (one.first_sample, one.global_batch_size)
        for one in doubling_ramp(measured, **limits).thresholds
    ]


def test_a_batch_doubles_where_twice_its_size_is_not_above_the_critical_batch():
    measured = [CriticalBatch(1000, 15.9), CriticalBatch(2000, 16), CriticalBatch(3000, 100)]
    assert sizes(measured, start=8, largest=1000, end_sample=END) == [
        (0, 8),
        (2000, 16),
        (3000, 64),
    ]
    assert sizes(measured, start=8, largest=40, end_sample=END) == [(0, 8), (2000, 16), (3000, 32)]


def test_there_is_no_ramp_below_twice_the_batch():
    assert sizes([CriticalBatch(0, 15)], start=8, largest=64, end_sample=END) == [(0, 8)]
    assert sizes([], start=8, largest=64, end_sample=END) == [(0, 8)]


def test_a_critical_batch_that_is_large_from_the_start_gives_a_constant_batch():
    assert sizes([CriticalBatch(0, 70)], start=8, largest=64, end_sample=END) == [(0, 64)]


def test_a_size_without_a_whole_step_is_left_out():
    measured = [CriticalBatch(END - 15, 16)]
    assert sizes(measured, start=8, largest=64, end_sample=END) == [(0, 8)]


@given(measured=MEASURED, start=st.integers(1, 64), largest=st.integers(1, 4096))
def test_a_ramp_stays_at_or_below_what_was_measured(measured, start, largest):
    ramp = doubling_ramp(measured, start=start, largest=largest, end_sample=END)
    found = ramp.thresholds
    assert found[0].first_sample == 0
    assert [one.global_batch_size for one in found] == sorted(
        {one.global_batch_size for one in found}
    )
    for one in found:
        later = [each for each in measured if each.consumed_samples >= one.first_sample]
        if one.global_batch_size != start:
            assert later[0].consumed_samples == one.first_sample
            assert one.global_batch_size <= min(largest, *(each.samples for each in later))


def test_a_measurement_holds_until_the_next_one():
    measured = [CriticalBatch(100, 8), CriticalBatch(200, 16)]
    found = [critical_batch_at(measured, samples) for samples in (99, 100, 199, 200, 900)]
    assert found == [None, measured[0], measured[0], measured[1], measured[1]]


def test_samples_beyond_the_critical_batch_and_unknown_ones_are_counted():
    ramp = RampSchedule(thresholds=(Threshold(0, 10), Threshold(500, 20)))
    measured = [
        CriticalBatch(100, 5),
        CriticalBatch(300, 10),
        CriticalBatch(600, 15, is_lower_bound=True),
        CriticalBatch(800, 15),
    ]
    # unknown until 100, beyond until 300, not until 500, then 20 is above 10 until 600, above a
    # lower bound until 800, and beyond until the end.
    assert samples_beyond(ramp.stages, measured, end_sample=1000) == (500, 300)
    # A phase from sample 600 on begins with what was measured there, and nothing before counts.
    stages = [StageExtent(**STAGE | {"first_sample": 600, "global_batch_size": 20})]
    assert samples_beyond(stages, measured, first_sample=600, end_sample=1000) == (200, 200)
    assert [(one.consumed_samples, one.samples) for one in from_sample(measured, 700)] == [
        (0, 15),
        (100, 15),
    ]


@given(measured=MEASURED, start=st.integers(1, 64))
def test_a_ramp_by_doubling_is_beyond_no_critical_batch_that_rises(measured, start):
    rising = [
        CriticalBatch(one.consumed_samples, max(start, *(m.samples for m in measured[: i + 1])))
        for i, one in enumerate(measured)
    ]
    ramp = doubling_ramp(rising, start=start, largest=4096, end_sample=END)
    beyond, _ = samples_beyond(ramp.stages, rising, end_sample=END)
    assert not beyond


@pytest.fixture
def run(tmp_path):
    """Returns a function that writes the noise scales of steps of 4 samples."""

    def write(scales, name="run"):
        directory = RunDirectory(tmp_path / name)
        directory.path.mkdir()
        for step, scale in enumerate(scales, 1):
            names = ("noise_scale", "noise_scale_low", "noise_scale_high")
            columns = {} if scale is None else dict(zip(names, scale, strict=True))
            row = metrics_row(step=step, consumed_samples=4 * step, **columns)
            directory.append_row(directory.metrics, row)
        return directory

    return write


def test_a_run_that_has_measured_nothing_has_no_noise_scale(run):
    assert read_noise(run([None, None])) == []
    assert read_noise(run([], name="without steps")) == []
    assert read_noise(run([(None, None, None)], name="with too few")) == []


def test_a_part_of_a_run_has_the_median_of_its_noise_scales(run):
    steps = 3 * BLOCKS
    points = read_noise(run([(step, step / 2, 2 * step) for step in range(1, steps + 1)]))
    assert [point.consumed_samples for point in points] == list(range(12, 4 * steps + 1, 12))
    assert [point.value for point in points] == list(range(2, steps, 3))
    assert [(point.low, point.high) for point in points[:2]] == [(1, 4), (2.5, 10)]


def test_steps_that_measure_nothing_do_not_count(run):
    points = read_noise(run([None, (8.0, 4.0, 9.0), None, None, (8.0, 5.0, 9.0), None]))
    assert [(point.consumed_samples, point.low) for point in points] == [(8, 4.0), (20, 5.0)]


def test_a_noise_scale_without_an_upper_end_is_a_lower_bound(run):
    point, *_ = read_noise(run([(None, 3.0, None)]))
    assert (point.value, point.low, point.high) == (None, 3.0, None)


def test_the_noise_scales_of_several_runs_are_in_order_of_samples(run):
    runs = [run([None, (8.0, 4.0, 9.0)]), run([(2.0, 1.0, 3.0)], name="other")]
    assert read_measurements(runs).critical() == [
        CriticalBatch(4, 1.0, is_lower_bound=True),
        CriticalBatch(8, 4.0, is_lower_bound=True),
    ]
