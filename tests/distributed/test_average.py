"""Averages of the weights equal those that are computed from the weights of each step."""

import pytest

from distributed.average import assert_same_averages, averaged, merged
from rampcli.batch.averages import EMA, MERGE
from rampcli.checkpoint.state import AVERAGE, prefix_of
from rampcli.checkpoint.tensor_files import TensorFiles
from rampcli.runs.manifest import complete_checkpoints
from tiny_runs import GPT

HALF_LIFE = 150
"""Tokens. The steps of the runs have 32, 64 and 96."""
WORDS = [
    "checkpoint.every_steps=1",
    "checkpoint.keep_last=100",
    "rampup.at_boundary=continue",
    "rampup.node_policy=fixed",
    "model.rampup_batch_size=[2,2,16]",
    "model.global_batch_size=6",
    "data.micro_batch_size=2",
    "trainer.val_samples=0",
]
FIRST_TOKEN = 80
"""Tokens before the mean. A step crosses it: the third of one run, the second of the other."""
ON = f"average.ema={HALF_LIFE}"
MERGED = f"average.merge=from:{FIRST_TOKEN}"
EACH = ("data.micro_batch_size=1",)


def assert_same(run, expected, kind=EMA) -> None:
    assert_same_averages(run.directory, kind, expected, rtol=1e-5, atol=1e-7)


def test_the_averages_of_a_ramp_in_bf16_are_exact_and_go_on_after_a_resume(run):
    """For other meshes, see `test_meshes.py`."""
    words = [*WORDS, ON, MERGED, *EACH, "trainer.precision=bf16"]
    words += ["model.rampup_batch_size=[3,3,24]", "model.global_batch_size=9"]
    words += [f"{key}={value}" for key, value in GPT.items()]
    for samples in (4, 40):
        run.workers(3, *words, f"trainer.max_samples={samples}")
        assert_same(run, averaged(run.directory, since_step=0, half_life_tokens=HALF_LIFE))
        if run.rows[-1]["consumed_tokens"] > FIRST_TOKEN:
            assert_same(run, merged(run.directory, first_token=FIRST_TOKEN), MERGE)
        else:
            newest = complete_checkpoints(run.directory)[-1]
            assert not TensorFiles.open(newest.path, newest.files).hold(prefix_of(MERGE))
    assert len({row["global_batch_size"] for row in run.rows}) == 3


def test_a_mean_goes_on_only_from_the_position_where_it_has_begun(run):
    words = [*WORDS, "trainer.max_samples=8"]
    run.workers(1, *words, MERGED)
    with pytest.raises(AssertionError, match="which holds no mean of the weights from there on"):
        run.workers(1, *WORDS, "trainer.max_samples=12", "average.merge=from:81")
    ended = run.rows[-1]["consumed_tokens"]
    run.workers(1, *WORDS, "trainer.max_samples=12", f"average.merge=from:{ended}")
    assert_same(run, merged(run.directory, first_token=ended), MERGE)


def test_an_average_that_is_turned_on_later_begins_at_the_loaded_weights_and_may_be_turned_off(run):
    run.workers(1, *WORDS, "trainer.max_samples=4")
    run.workers(2, *WORDS, *EACH, ON, "trainer.max_samples=16")
    (begun,) = run.events_of("average")
    assert begun["step"] == 2
    assert begun["reason"] == "average.ema begins at the weights of step 2"
    assert_same(run, averaged(run.directory, since_step=2, half_life_tokens=HALF_LIFE))
    run.workers(1, *WORDS, "trainer.max_samples=24")
    newest = complete_checkpoints(run.directory)[-1]
    assert not TensorFiles.open(newest.path, newest.files).hold(AVERAGE)


@pytest.mark.parametrize(
    "mesh",
    [
        (*EACH, "checkpoint.async=true"),
        ("parallel.pipeline_parallel_size=2", *EACH, "trainer.precision=bf16"),
    ],
)
def test_averages_are_validated_and_training_goes_on_with_the_weights(mesh, run):
    """One average hardly moves from the initial weights, another follows those of each step.

    A mean begins with the weights after the fourth step, another one is that of two checkpoints.
    """
    words = [*WORDS, *mesh, "trainer.val_samples=6", "trainer.val_every_steps=1"]
    words += ["trainer.max_samples=20"]
    whole, still = (run.beside(name) for name in ("whole", "still"))
    whole.workers(2, *words)
    still.workers(2, *words, "average.ema=1_000_000_000_000_000_000", "average.merge=last:2")
    run.workers(2, *words, "average.ema=1", "average.merge=from:steps:3")
    for each in (run, still):
        assert [row["loss"] for row in each.rows] == [row["loss"] for row in whole.rows]
        assert each.validations() == whole.validations()
    found, kept, since, of_two = (
        {
            row["step"]: row[column]
            for row in each.events
            if row["event"] == "validation" and column in row
        }
        for column in ("ema_loss", "merge_loss")
        for each in (run, still)
    )
    assert found == pytest.approx(whole.validations(), abs=1e-6)
    assert kept == dict.fromkeys(whole.validations(), whole.validations()[0])
    assert list(since) == [step for step in found if step > 3]
    assert since[4] == whole.validations()[4]
    assert list(of_two) == [len(whole.rows)]
