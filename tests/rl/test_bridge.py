import os

import pytest
import torch

from policy_runs import Pretraining
from rampcli.errors import UsageError
from rampcli.rl.bridge import Staging, take_role
from ranks import run_program, run_ranks


def test_weights_of_all_shapes_and_types_go_through_the_same_memory():
    """Allocating pinned memory takes longer than the copy that it makes faster."""
    staging = Staging()
    shapes = ((64, 8), (3,), (), (0, 8), (16, 32))
    largest = torch.zeros(64, 8, dtype=torch.float64)
    place = staging.memory_for(largest).data_ptr()
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for shape in shapes:
            weight = torch.randn(shape, dtype=dtype)
            received = staging.memory_for(weight).copy_(weight)
            assert torch.equal(received, weight)
            assert received.dtype is dtype
            assert received.data_ptr() in (place, 0)


MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}


@pytest.fixture
def environment(monkeypatch):
    """Returns the environment of this process, as mpirun sets it."""
    variables = {"PATH": os.environ["PATH"], **MPIRUN}
    monkeypatch.setattr(os, "environ", variables)
    return variables


def test_the_last_ranks_generate_and_see_a_world_of_those_that_train(environment):
    roles = take_role(2)
    assert (roles.rank, roles.trainers, roles.generators) == (2, 2, 2)
    assert (roles.generates, roles.generator) == (True, 0)
    # All of them are on one host.
    assert environment["WORLD_SIZE"] == environment["LOCAL_WORLD_SIZE"] == "2"


def test_without_ranks_that_only_generate_the_environment_stays(environment):
    before = dict(environment)
    assert not take_role(0).generates
    assert environment == before


def test_a_rank_must_be_left_to_train(environment):  # noqa: ARG001
    with pytest.raises(UsageError, match="leaves none of the 4 processes to train") as refused:
        take_role(4)
    assert "5 processes" in refused.value.remedy


def test_ranks_that_only_generate_share_the_host_of_those_that_train(environment):
    del environment["OMPI_COMM_WORLD_RANK"]
    environment |= {"SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    environment |= {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "20000"}
    environment["SLURM_STEP_TASKS_PER_NODE"] = "1(x2)"
    with pytest.raises(UsageError, match="needs all 2 processes on one host"):
        take_role(1)
    assert take_role(0).trainers == 2
    environment["SLURM_STEP_TASKS_PER_NODE"] = "2"
    assert take_role(1).generates


@pytest.mark.parametrize("module", ["rampcli.worker", "rampcli.rl.rank"])
def test_the_program_of_a_rank_names_the_other_one_if_that_trains_the_run(module, run, tmp_path):
    other = "rampcli.rl.rank" if module == "rampcli.worker" else "rampcli.worker"
    described = run if module == "rampcli.worker" else Pretraining(tmp_path / "pretraining")
    described.describe()
    with pytest.raises(AssertionError, match=f"python -m {other}"):
        run_ranks(1, run_program, module, str(described.path), logs=described.directory.logs)
    assert described.rows == []
