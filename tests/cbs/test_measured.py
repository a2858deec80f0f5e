import pytest

from rampcli.cbs.critical_batch import CriticalBatch
from rampcli.cbs.measured import BLOCKS, read_measurements, read_noise
from rampcli.runs.directory import RunDirectory
from run_files import metrics_row


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
