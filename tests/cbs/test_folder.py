import json

import pytest

from rampcli.cbs.folder import BranchFolder, read_branches
from rampcli.errors import DamagedFileError
from rampcli.runs.directory import RunDirectory

RESULT = {
    "step": 5,
    "sequence_length": 16,
    "global_batch_size": 8,
    "lr": 0.1,
    "exponent": 0.5,
    "decays": True,
    "samples": 160,
    "samples_left": 320,
    "critical_batch_size": None,
    "is_lower_bound": False,
    "notes": [],
    "branches": [],
}


@pytest.fixture
def run(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    for samples in (1000, 80):
        folder = BranchFolder.of(directory, samples)
        folder.claim()
        folder.write_json(folder.result, RESULT | {"consumed_samples": samples})
    BranchFolder.of(directory, 90).claim()  # linked, and nothing recorded yet
    return directory


def test_results_are_in_the_order_of_their_checkpoints(run):
    assert [one["consumed_samples"] for one in read_branches(run)] == [80, 1000]


def test_a_run_without_branches_has_no_results(tmp_path):
    assert read_branches(RunDirectory(tmp_path)) == []


def test_a_damaged_result_is_named(run):
    path = BranchFolder.of(run, 80).result
    path.write_text(json.dumps(RESULT))
    with pytest.raises(DamagedFileError, match=str(path)):
        read_branches(run)
