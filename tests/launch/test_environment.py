import socket

import pytest

from rampcli.errors import UsageError
from rampcli.launch.environment import (
    check_interfaces,
    check_outer_launcher,
    without_outer_launcher,
)
from rampcli.launch.workers import worker_environment

TORCHRUN = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "host",
    "MASTER_PORT": "1",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


@pytest.mark.parametrize(
    ("environment", "program"),
    [
        (TORCHRUN, "torchrun"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "mpirun"),
        ({"SLURM_STEP_NUM_TASKS": "2"}, "srun"),
    ],
)
def test_a_command_that_another_launcher_starts_once_per_rank_says_what_to_type(
    environment, program
):
    with pytest.raises(UsageError, match=f"{program} has started this command") as refused:
        check_outer_launcher(environment)
    assert f"the same command without {program}" in refused.value.remedy


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OMPI_COMM_WORLD_SIZE": "1"},
        {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "8"},
        {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "left over"},
    ],
)
def test_a_command_that_is_started_once_is_accepted(environment):
    check_outer_launcher(environment)


def test_variables_of_another_launcher_do_not_reach_workers(monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    assert not TORCHRUN.keys() & worker_environment(threads=1).keys()
    assert worker_environment(threads=1)["NCCL_DEBUG"] == "WARN"
    assert without_outer_launcher(TORCHRUN) == {}


def test_an_interface_that_does_not_exist_is_refused_with_those_that_do():
    here = [name for _, name in socket.if_nameindex()]
    check_interfaces({"GLOO_SOCKET_IFNAME": ",".join(here)})
    check_interfaces({})
    with pytest.raises(UsageError, match="names bond1, which is no network") as refused:
        check_interfaces({"GLOO_SOCKET_IFNAME": f"{here[0]},bond1"})
    assert here[0] in refused.value.remedy
