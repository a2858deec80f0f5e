"""Averages of the weights equal those that are computed from the weights of each step."""

import pytest

from distributed.average import averaged, newest_average
from rampcli.checkpoint.state import AVERAGE
from rampcli.checkpoint.tensor_files import TensorFiles
from rampcli.runs.manifest import complete_checkpoints
from tiny_runs import GPT, Run

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
ON = f"average.ema={HALF_LIFE}"
EACH = ("data.micro_batch_size=1",)


def assert_same(run, expected) -> None:
    found = newest_average(run.directory)
    assert found.keys() == expected.keys()
    for name, average in found.items():
        assert average.double().numpy() == pytest.approx(expected[name].numpy(), rel=1e-5, abs=1e-7)


CHAINS = {
    "llama": [
        (1, 4, ()),
        (2, 12, EACH),
        (2, 20, ("parallel.tensor_parallel_size=2",)),
        (2, 28, ("parallel.data_parallel_shard_size=1", *EACH)),
        (2, 40, ("parallel.pipeline_parallel_size=2", *EACH)),
    ],
    "tied gpt, bf16": [
        (2, 12, ("parallel.pipeline_parallel_size=2", *EACH)),
        (3, 42, EACH),
    ],
}
"""Ranks, samples at the end, and settings. The batch grows within the second entry or later."""


@pytest.mark.parametrize("family", CHAINS)
def test_the_average_of_a_ramp_is_exact_on_every_mesh_and_resumes_on_another(family, run):
    words = [*WORDS, ON]
    if family != "llama":
        words += ["model.rampup_batch_size=[3,3,24]", "model.global_batch_size=9"]
        words += [*(f"{key}={value}" for key, value in GPT.items()), "trainer.precision=bf16"]
    for ranks, samples, mesh in CHAINS[family]:
        run.workers(ranks, *words, *mesh, f"trainer.max_samples={samples}")
        assert_same(run, averaged(run.directory, since_step=0, half_life_tokens=HALF_LIFE))
    assert len({row["global_batch_size"] for row in run.rows}) == 3
    assert [row for row in run.events if row["event"] == "average"] == []


def test_an_average_that_is_turned_on_later_begins_at_the_loaded_weights_and_may_be_turned_off(run):
    run.workers(1, *WORDS, "trainer.max_samples=4")
    run.workers(2, *WORDS, *EACH, ON, "trainer.max_samples=16")
    (begun,) = (row for row in run.events if row["event"] == "average")
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
def test_the_average_is_validated_and_training_goes_on_with_the_weights(mesh, run):
    """One average hardly moves from the initial weights, another follows those of each step."""
    words = [*WORDS, *mesh, "trainer.val_samples=6", "trainer.val_every_steps=1"]
    words += ["trainer.max_samples=20"]
    whole, still = (Run(run.path.with_name(name)) for name in ("whole", "still"))
    whole.workers(2, *words)
    still.workers(2, *words, "average.ema=1_000_000_000_000_000_000")
    run.workers(2, *words, "average.ema=1")
    for each in (run, still):
        assert [row["loss"] for row in each.rows] == [row["loss"] for row in whole.rows]
        assert each.validations() == whole.validations()
    found, kept = (
        {row["step"]: row["ema_loss"] for row in each.events if row["event"] == "validation"}
        for each in (run, still)
    )
    assert found == pytest.approx(whole.validations(), abs=1e-6)
    assert kept == dict.fromkeys(whole.validations(), whole.validations()[0])
    assert len(found) > 4
