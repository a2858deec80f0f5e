"""A rank that only generates and runs out of memory ends the run with settings that need less."""

from memory_limits import limit_addresses
from policy_runs import PolicyRun
from rampcli.errors import OutOfMemoryError

TOO_MANY = [
    "model.init_from=null",
    "rl.kl_weight=0",
    "rl.prompts_per_step=16",
    "rl.generations_per_prompt=100000",
    "rl.micro_batch_size=null",
    "trainer.devices=2",
    "rl.rollout_ranks=1",
    "trainer.val_samples=0",
    "launch.backoff_s=0",
]


def test_a_generating_rank_out_of_memory_names_what_a_rollout_holds(tmp_path):
    run = PolicyRun(tmp_path / "run", tmp_path)
    command = run.start(*TOO_MANY, prepare=limit_addresses)
    _, errors = command.communicate()
    assert command.returncode == OutOfMemoryError.exit_code, errors
    assert "rank 1 ran out of memory while it generated" in errors
    assert "rl.micro_batch_size=1600000 and rl.max_response_tokens=4" in errors
    assert "try:    rl.micro_batch_size=800000, or rl.max_response_tokens=2" in errors
    assert "Traceback" not in errors
    assert run.state["error"]["out_of_memory"]
    assert [row["event"] for row in run.events if row["event"] in ("launch", "fault")] == ["launch"]
