import re
import socket

import pytest

from rampcli import llm
from rampcli.errors import UsageError
from rampcli.launch.doctor.check import Status
from rampcli.launch.doctor.machine import check_environment
from rampcli.launch.environment import (
    check_chosen_gpus,
    check_outer_launcher,
    check_variables,
    nccl_interfaces,
    without_outer_launcher,
)
from rampcli.launch.start_checks import launcher_refusals
from rampcli.launch.workers import worker_environment
from rampcli.planning.resolve import resolve

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
        ({**TORCHRUN}, "torchrun"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "mpirun"),
        ({"PMI_SIZE": "2"}, "mpiexec"),
        ({"SLURM_STEP_NUM_TASKS": "2"}, "srun"),
    ],
)
def test_a_command_that_another_launcher_starts_once_per_rank_says_what_to_type(
    environment, program
):
    with pytest.raises(UsageError, match=f"{program} has started this command") as refused:
        check_outer_launcher(environment)
    assert f"the same command without {program}" in refused.value.remedy
    for variable in re.findall("unset ([A-Z_]+)", refused.value.remedy):
        del environment[variable]
    check_outer_launcher(environment)


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
    both = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    for names in ({}, dict.fromkeys(both, ",".join(here)), {"NCCL_SOCKET_IFNAME": "^bond1"}):
        check_variables(on_gpus=True, environment=names)
    for name in both:
        with pytest.raises(UsageError, match="names bond1, which is no network") as refused:
            check_variables(on_gpus=True, environment={name: "bond1"})
        assert here[0] in refused.value.remedy
    with pytest.raises(UsageError, match="names bond1, which"):
        check_variables(on_gpus=False, environment={both[0]: f"{here[0]},bond1"})
    check_variables(on_gpus=False, environment={both[1]: "bond1"})  # NCCL is not used


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("eth", ["eth0", "eth1"]),
        ("=eth", []),
        ("=eth0,lo", ["lo", "eth0"]),
        ("^eth", ["lo", "ib0"]),
        ("^=eth0", ["lo", "eth1", "ib0"]),
    ],
)
def test_nccl_takes_prefixes_whole_names_and_exclusions(text, found):
    assert nccl_interfaces(text, ["lo", "eth0", "eth1", "ib0"]) == found


@pytest.mark.parametrize(
    ("threads", "is_valid"), [("4", 1), ("4,2", 1), ("0", 0), ("abc", 0), ("", 0)]
)
def test_a_number_of_threads_that_openmp_would_ignore_is_refused(threads, is_valid):
    if is_valid:
        check_variables(on_gpus=False, environment={"OMP_NUM_THREADS": threads})
        return
    with pytest.raises(UsageError, match=f"OMP_NUM_THREADS={threads} in the environment"):
        check_variables(on_gpus=False, environment={"OMP_NUM_THREADS": threads})


@pytest.mark.parametrize(("count", "first"), [(0, "0"), (2, "0,1")])
def test_chosen_gpus_that_cuda_would_leave_out_are_refused_with_a_choice_that_works(count, first):
    name = "CUDA_VISIBLE_DEVICES"
    for chosen in ("0,,1", "a,b", "0,0"):
        with pytest.raises(UsageError, match=f"{name}={chosen} in the environment") as refused:
            check_chosen_gpus({name: chosen}, count=count)
        assert f"{name}={first}," in refused.value.remedy
    for environment in ({}, {name: first}, {name: ""}):
        check_chosen_gpus(environment, count=count)


@pytest.mark.parametrize(("accelerator", "is_refused"), [("auto", True), ("cpu", False)])
def test_only_a_run_that_may_use_gpus_looks_at_those_that_are_chosen(
    monkeypatch, accelerator, is_refused
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "a,b")
    config = llm.llama3_tiny.pretrain_recipe()
    config.trainer.accelerator = accelerator
    resolved = resolve(config)
    refused = [str(error) for error in launcher_refusals(resolved)]
    assert ["CUDA uses no GPU, because a is no" in text for text in refused] == [True] * is_refused
    assert (check_environment(resolved).status is Status.failure) == is_refused
