import pytest

from rampcli.runs.manifest import complete_checkpoints
from tiny_runs import assert_every_sample_is_read_once, assert_same_training

"""Steps that would do harm: stopped at, or passed over with the order of the samples intact."""

LOUD = [
    "rampup.node_policy=fixed",
    "trainer.num_nodes=2",
    "data.micro_batch_size=1",
    "rampup.at_boundary=continue",
]


def test_a_non_finite_loss_ends_the_run_with_step_samples_and_remedy(run):
    done = run.pretrain(
        *LOUD, "optim.lr=9e17", "optim.warmup_samples=0", "checkpoint.every_steps=1"
    )
    assert done.returncode == 1
    last = run.rows[-1]
    assert (
        f"step {last['step'] + 1}, after {last['consumed_samples']:,} samples: the " in done.stderr
    )
    assert "trainer.on_nonfinite=skip" in done.stderr
    assert (
        f"the same command resumes from step {complete_checkpoints(run.directory)[-1].step}"
        in done.stderr
    )
    assert run.state["status"] == "failed"


@pytest.mark.parametrize(
    "words",
    [
        ["optim.optimizer=adamw"],
        ["optim.optimizer=muon", "parallel.data_parallel_shard_size=2"],
        ["optim.optimizer=muon", "parallel.tensor_parallel_size=2"],
    ],
)
def test_non_finite_steps_are_skipped_on_request_and_every_sample_is_still_read_once(run, words):
    run.workers(
        2,
        *LOUD,
        *words,
        "optim.lr=9e17",
        "optim.warmup_samples=0",
        "trainer.on_nonfinite=skip",
        "trainer.val_samples=0",
        "trainer.max_samples=24",
    )
    assert_every_sample_is_read_once(run)
    skipped = {event["step"]: event["reason"] for event in run.events_of("skip")}
    assert skipped
    for row in run.rows:
        assert (row["loss"] is None or row["grad_norm"] is None) == (row["step"] in skipped)
    assert set(skipped.values()) <= {
        f"the {name} is {value}" for name in ("loss", "gradient norm") for value in ("nan", "inf")
    }


def test_an_outlier_step_changes_no_weight_and_a_resumed_run_skips_the_same_steps(run):
    words = [
        "model.rampup_batch_size=null",
        "rampup.at_boundary=continue",
        "optim.skip_step_sigma=1.5",
        "trainer.val_samples=0",
    ]
    words += ["schedule.decay_style=constant", "model.global_batch_size=2"]
    whole = run.beside("whole")
    whole.workers(1, *words, "trainer.max_samples=180")
    for samples in (140, 180):
        run.workers(1, *words, f"trainer.max_samples={samples}")
    assert_same_training(run, whole)
    skipped = [[event["step"] for event in each.events_of("skip")] for each in (run, whole)]
    assert skipped[0] == skipped[1]
    assert skipped[0]
    assert min(skipped[0]) > 64
