"""Runs that measure the noise of their gradient."""

from rampcli.batch.noise_scale import Noise, NoiseAverage
from tiny_runs import assert_same_training

HERE = ("rampup.at_boundary=continue", "rampup.node_policy=fixed", "noise_scale.every_steps=1")


def test_a_run_that_measures_its_noise_trains_as_any_other(run, undisturbed):
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
