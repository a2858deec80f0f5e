import pytest

from rampcli.config import snapshot
from rampcli.errors import UsageError
from rampcli.own_folder import replace_file
from rampcli.report.measured import WARM_UP_STEPS, measured_points
from rampcli.run_directory import RunDirectory
from run_files import metrics_row


@pytest.fixture
def run(tmp_path, planned):
    """Returns a function that writes the run directory of a trained run with given metrics."""

    def write(rows, resolved=None):
        directory = RunDirectory(tmp_path / "earlier")
        directory.path.mkdir()
        replace_file(
            directory.config, snapshot.to_yaml((resolved or planned("llama3_tiny")).config)
        )
        for row in rows:
            directory.append_row(directory.metrics, row)
        return directory

    return write


def steps(rates, *, stage=0, world=1, accumulate=1):
    return [
        metrics_row(
            stage=stage, world_size=world, accumulate_grad_batches=accumulate, tokens_per_s=rate
        )
        for rate in rates
    ]


def test_throughput_is_the_median_per_gpu_over_the_steps_after_the_first(run, planned):
    slow = [1.0] * WARM_UP_STEPS
    rows = [
        *steps([*slow, 1000.0, 3000.0, 2000.0]),
        *steps([*slow, 4000.0], stage=1, world=2, accumulate=3),
        *steps([*slow, 9000.0, 9000.0, 100.0], stage=2, world=1, accumulate=2),
    ]
    assert measured_points(run(rows), planned("llama3_tiny").config) == (
        (1, 2000.0),
        (2, 9000.0),
        (3, 2000.0),
    )


def test_the_first_steps_of_every_set_of_processes_are_left_out(run, planned):
    slow = [1.0] * WARM_UP_STEPS
    rows = [
        *steps([*slow, 500.0]),
        *steps([*slow, 700.0], world=2),
        *steps(slow, stage=1, accumulate=2),
    ]
    assert measured_points(run(rows), planned("llama3_tiny").config) == ((1, 425.0),)


@pytest.mark.parametrize("rows", [[], steps([500.0] * WARM_UP_STEPS)])
def test_a_run_that_is_too_short_has_no_throughput(run, planned, rows):
    directory = run(rows)
    with pytest.raises(UsageError, match="no stage has more than 3 steps") as refused:
        measured_points(directory, planned("llama3_tiny").config)
    assert str(directory.path) in refused.value.message


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("model.hidden_size=256", "model.hidden_size"),
        ("model.num_layers=6", "model.num_layers"),
        ("data.sequence_length=64", "data.sequence_length"),
        ("data.micro_batch_size=2", "data.micro_batch_size"),
    ],
)
def test_throughput_measured_on_another_model_is_refused(run, planned, word, key):
    directory = run(steps([500.0] * 5), planned("llama3_tiny", word))
    with pytest.raises(UsageError, match=f"that run had {key}={word.partition('=')[2]}") as refused:
        measured_points(directory, planned("llama3_tiny").config)
    assert refused.value.keys == (key,)


@pytest.mark.parametrize(
    "word",
    ["optim.lr=0.01", "seed=5", "trainer.num_nodes=4", "model.global_batch_size=32", "name=other"],
)
def test_throughput_of_the_same_model_is_used_although_other_settings_differ(run, planned, word):
    directory = run(steps([500.0] * 5), planned("llama3_tiny", word))
    assert measured_points(directory, planned("llama3_tiny").config) == ((1, 500.0),)


def test_a_run_directory_without_config_yaml_is_refused(run, planned):
    directory = run(steps([500.0] * 5))
    directory.config.unlink()
    with pytest.raises(UsageError, match="cannot read"):
        measured_points(directory, planned("llama3_tiny").config)
