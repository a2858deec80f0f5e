import json

import pytest

from rampcli.errors import RampcliError
from rampcli.launch.run import write_run_files
from rampcli.launch.slurm.job import FRUITLESS_STARTS, check_progress, train_stages
from rampcli.machine.lifeline import StopSignals
from rampcli.runs.directory import RunDirectory
from run_files import leave_checkpoint, state


@pytest.fixture
def run(tmp_path, planned):
    """A described run whose stages begin after 0, 800, 1600 and 2404 samples."""
    directory = RunDirectory(tmp_path)
    words = (f"run_dir={tmp_path}", "trainer.accelerator=cpu")
    write_run_files(directory, planned("llama3_tiny", *words), [])
    return directory


def leave_chain(run, *, cancelled):
    (run.path / "slurm").mkdir()
    (run.path / "slurm/jobs.json").write_text(
        json.dumps({"jobs": [], "submitted": 1.0, "cancelled": cancelled})
    )


@pytest.mark.parametrize(("consumed_samples", "stages"), [(800, [0]), (1600, [0, 1]), (3204, [3])])
def test_a_job_whose_stages_are_already_trained_succeeds_at_once(run, consumed_samples, stages):
    leave_checkpoint(run, consumed_samples=consumed_samples)
    run.write_state(state(status="complete" if consumed_samples == 3204 else "stage_boundary"))
    assert train_stages(run, stages, StopSignals()) == 0
    assert not run.events.exists()


def test_a_job_that_is_too_early_fails(run):
    leave_checkpoint(run, consumed_samples=800)
    with pytest.raises(RampcliError, match="is at stage 1, but this job trains stage 2") as refused:
        train_stages(run, [2], StopSignals())
    assert refused.value.remedy == "the same command, which submits the remaining jobs"


def test_a_job_of_a_cancelled_chain_trains_nothing(run):
    leave_chain(run, cancelled=True)
    assert train_stages(run, [0], StopSignals()) == 0
    assert not run.events.exists()


def test_a_job_that_never_saves_within_its_time_limit_fails_after_some_starts(run):
    run.append_event("launch")
    run.append_event("checkpoint")
    for _ in range(FRUITLESS_STARTS - 1):
        run.append_event("launch")
        check_progress(run)
    run.append_event("launch")
    with pytest.raises(RampcliError, match="its time limit is too short") as refused:
        check_progress(run)
    assert "longer launch.slurm.time" in refused.value.remedy
