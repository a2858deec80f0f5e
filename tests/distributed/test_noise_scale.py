"""The noise of the gradient is the same on every mesh."""

import pytest

from distributed.noise import measured
from rampcli.batch.noise_scale import Noise, NoiseAverage
from ranks import run_ranks

SHARD, TENSOR, CONTEXT, PIPELINE, PIECES = (
    "data_parallel_shard_size",
    "tensor_parallel_size",
    "context_parallel_size",
    "pipeline_parallel_size",
    "num_pipeline_microbatches",
)
EACH = {"accumulate_reduce": "each"}
MESHES = {
    "replicas": (2, {SHARD: 1}, {}),
    "sharded": (2, {}, {}),
    "sharded, reduced after each micro batch": (2, {}, EACH),
    "sharded within replicas": (4, {SHARD: 2}, EACH),
    "tensor": (2, {TENSOR: 2}, {}),
    "tensor x sharded": (4, {TENSOR: 2}, EACH),
    "context": (2, {CONTEXT: 2}, {}),
    "pipeline": (2, {PIPELINE: 2}, {}),
    "compiled": (1, {}, {"compile": True}),
}


@pytest.mark.parametrize("tied", [False, True])
def test_every_mesh_measures_the_noise_that_one_rank_measures(tied, tmp_path):
    """Ranks that hold the same weights or samples count them once, and addends are summed first."""
    (alone,) = run_ranks(1, measured, {}, {}, 1, tied, logs=tmp_path)
    for name, (ranks, parallel, trainer) in MESHES.items():
        if tied and name in ("pipeline", "compiled"):  # a check of settings refuses the first one
            continue
        for found in run_ranks(ranks, measured, parallel, trainer, 1, tied, logs=tmp_path):
            assert found.groups == pytest.approx(alone.groups, rel=1e-5), name
            assert found.grad_norm == pytest.approx(alone.grad_norm, rel=1e-5), name


def test_pieces_of_a_micro_batch_are_the_groups_of_a_pipeline(tmp_path):
    (alone,) = run_ranks(1, measured, {}, {}, 2, logs=tmp_path)
    for found in run_ranks(2, measured, {PIPELINE: 2, PIECES: 2}, {}, 4, logs=tmp_path):
        assert found.groups == pytest.approx(alone.groups, rel=1e-5)


def test_the_noise_in_bf16_is_that_in_fp32_up_to_rounding(tmp_path):
    (alone,) = run_ranks(1, measured, {}, {}, 1, logs=tmp_path)
    bf16 = {"precision": "bf16"}
    for found in run_ranks(2, measured, {}, bf16, 1, logs=tmp_path):
        assert found.groups == pytest.approx(alone.groups, rel=1e-2)


def test_a_step_of_one_micro_batch_is_measured_in_two_halves(tmp_path):
    (halves,) = run_ranks(1, measured, {}, {}, 4, logs=tmp_path)
    for trainer in ({}, {"compile": True}):
        (found,) = run_ranks(1, measured, {}, trainer, 8, logs=tmp_path)
        assert found.groups == pytest.approx(halves.groups, rel=1e-5)
        assert found.grad_norm == pytest.approx(halves.grad_norm, rel=1e-5)


HERE = ("rampup.at_boundary=continue", "rampup.node_policy=fixed", "noise_scale.every_steps=1")


def test_a_run_that_measures_its_noise_trains_as_any_other(run, undisturbed, assert_same_training):
    run.workers(1, *HERE)
    assert_same_training(run, undisturbed)
    assert all("grad_sq" in row for row in run.rows)
    assert not any("grad_sq" in row for row in undisturbed.rows)


def test_a_resume_continues_the_average(run):
    """Also on another number of ranks, and with an interval between measured steps."""
    words = (*HERE[:2], "noise_scale.every_steps=2", "data.micro_batch_size=1")
    settled = ("schedule.decay_style=constant", "model.rampup_batch_size=null")
    for processes, samples in ((1, 80), (2, 160)):
        run.workers(processes, *words, *settled, f"trainer.max_samples={samples}")
    average, known = NoiseAverage(), 0
    for row in run.rows:
        assert ("noise_scale" in row) == ("grad_sq" in row) == (row["step"] % 2 == 0)
        if "grad_sq" in row:
            average.add(Noise(row["grad_sq"], row["grad_var"]))
            expected = average.scale().columns()
            assert {name: row[name] for name in expected} == expected
            known += row["noise_scale_low"] is not None
    assert len(run.rows) == 20
    assert known == 3
