"""The processes of a run listen on one interface, which is loopback if all are on this machine."""

import signal

import pytest

from commands import Command
from processes import children_of, listening_addresses, wait_until
from rampcli.launch.workers import reserve_port
from rampcli.machine.network import address_towards, is_loopback
from tiny_runs import environment

# Validations, saves in the background and each axis of the mesh have process groups.
GROUPS = [
    "trainer.val_samples=4",
    "trainer.val_every_steps=2",
    "checkpoint.every_steps=2",
    "checkpoint.async=true",
]
GROUPS += [
    "model.rampup_batch_size=null",
    "model.global_batch_size=4",
    "data.micro_batch_size=1",
    "trainer.max_samples=8_000_000",
]


def wait_until_saved(run, process):
    wait_until(
        lambda: {"checkpoint", "validation"} <= {row["event"] for row in run.events}, process
    )


@pytest.mark.parametrize(
    "words",
    [
        ["trainer.devices=1"],
        ["trainer.devices=2"],
        [
            "trainer.devices=4",
            "parallel.tensor_parallel_size=2",
            "parallel.data_parallel_shard_size=2",
        ],
        ["trainer.devices=1", "trainer.num_nodes=2", "launch.elastic=true"],
    ],
)
def test_a_run_on_this_machine_listens_on_loopback_alone(run, words):
    supervisor = run.start(*GROUPS, *words)
    wait_until_saved(run, supervisor)
    addresses = listening_addresses([supervisor.pid, *children_of(supervisor.pid)])
    supervisor.send_signal(signal.SIGTERM)
    supervisor.ends_with(75)
    assert addresses
    assert all(map(is_loopback, addresses)), addresses


def test_ranks_that_meet_at_an_address_of_this_machine_listen_there_alone(run):
    try:
        address = address_towards("192.0.2.1")  # reserved for documentation
    except OSError:
        pytest.skip("this machine has no network")
    run.path.mkdir()
    run.directory.config.write_text(run.pretrain("--cfg", *GROUPS, "trainer.devices=2").stdout)
    with reserve_port(address) as reserved:
        meeting = {
            "WORLD_SIZE": "2",
            "MASTER_ADDR": address,
            "MASTER_PORT": str(reserved.getsockname()[1]),
        }
        workers = [
            Command(
                [str(run.path)],
                environment() | meeting | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                program="rampcli.worker",
            )
            for rank in range(2)
        ]
        wait_until_saved(run, workers[0])
        assert listening_addresses(worker.pid for worker in workers) == {address}
        for worker in workers:
            worker.terminate()
        assert [worker.wait() for worker in workers] == [75, 75]
