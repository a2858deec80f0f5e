"""A run that needs more memory than there is ends with one error, and is not restarted."""

from functools import partial

import pytest

from memory_limits import join_group, limit_addresses, memory_group

TOO_LARGE = [
    "model.rampup_batch_size=null",
    "model.global_batch_size=65536",
    "data.micro_batch_size=32768",
    "trainer.num_nodes=2",
    "trainer.max_samples=65536",
    "trainer.val_samples=0",
    "launch.backoff_s=0",
]


def train_within(limit, run):
    command = run.start(*TOO_LARGE, prepare=limit)
    _, errors = command.communicate()
    return command.returncode, errors


@pytest.mark.parametrize("how", ["an allocation fails", "the kernel kills"])
def test_a_run_that_runs_out_of_memory_names_the_micro_batch_and_is_not_restarted(how, run):
    if how == "an allocation fails":
        code, errors = train_within(limit_addresses, run)
    else:
        with memory_group(3 * 2**28) as group:
            code, errors = train_within(partial(join_group, group), run)
    assert code == 1, errors
    assert "out of memory" in errors
    assert "data.micro_batch_size=32768 and trainer.activation_checkpointing=none" in errors
    assert (
        "try:    data.micro_batch_size=16384, or trainer.activation_checkpointing=selective"
        in errors
    )
    assert "Traceback" not in errors
    assert run.state["status"] == "failed"
    assert run.state["error"]["out_of_memory"]
    assert [row["event"] for row in run.events if row["event"] in ("launch", "fault")] == ["launch"]
