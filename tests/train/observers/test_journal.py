import math
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rampcli.batch.noise_scale import Noise
from rampcli.checkpoint.state import TrainingState
from rampcli.estimate.model_size import flops_per_token
from rampcli.runs.directory import RunDirectory
from rampcli.runs.metrics import NOISE_METRICS, STEP_METRICS
from rampcli.runs.rows import read_rows
from rampcli.train.observers.boundary import BoundaryCosts
from rampcli.train.observers.journal import Journal
from rampcli.train.observers.observer import ObserverList
from rampcli.train.observers.step_warnings import SlowData
from taken_steps import step_of

PEAK_TFLOPS = 0.5


class NoOperations(TorchDispatchMode):
    """Refuses every operation of torch, each of which could wait for a device."""

    def __torch_dispatch__(self, func, *_):
        raise AssertionError(f"{func} was called")


@pytest.fixture
def resolved(planned):
    return planned("llama3_tiny", f"trainer.peak_tflops={PEAK_TFLOPS}")


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path)


@pytest.fixture
def journal(alone, run, resolved):  # noqa: ARG001
    return Journal(run, resolved.plan, resolved.config, torch.device("cpu"))


def test_recording_a_step_runs_no_torch_operation(resolved, run, journal):
    costs = BoundaryCosts(run=run, started=1.0, imported=2.0)
    observers = ObserverList([journal, costs, SlowData(run)])
    state = TrainingState(step=1, consumed_samples=4)
    observers.at_start(state)
    with NoOperations():
        for _ in range(60):
            observers.after_step(state, step_of(resolved, 0, 0.5))
        with pytest.raises(AssertionError):
            torch.zeros(1).item()
    assert len(list(read_rows(run.metrics))) == 60


def test_a_row_has_the_z_loss_of_a_step_that_has_one(resolved, run, journal):
    step = step_of(resolved, 0, 0.5)
    for z_loss in (None, 17.5, math.inf):
        result = replace(step.result, z_loss=z_loss)
        journal.after_step(TrainingState(step=1, consumed_samples=4), replace(step, result=result))
    rows = list(read_rows(run.metrics))
    assert [row.get("z_loss", "absent") for row in rows] == ["absent", 17.5, None]


def test_every_column_of_a_row_is_declared_and_every_metric_of_a_step_is_a_column(
    resolved, run, journal
):
    step = step_of(resolved, 0, 0.5)
    step = replace(step, noise=Noise(1.0, 2.0), result=replace(step.result, z_loss=1.0))
    coupled = {"beta2": 0.9, "weight_decay": 0.1}
    journal.after_step(TrainingState(step=1, consumed_samples=4), replace(step, columns=coupled))
    (row,) = read_rows(run.metrics)
    assert row.keys() == {one.name for one in (*STEP_METRICS, *NOISE_METRICS)}


def test_throughput_is_that_of_the_step_and_its_batch(resolved, run, journal):
    for stage, step_time_s in ((0, 0.5), (2, 4.0)):
        journal.after_step(
            TrainingState(step=1, consumed_samples=4), step_of(resolved, stage, step_time_s)
        )
    rows = list(read_rows(run.metrics))
    assert [row["global_batch_size"] for row in rows] == [4, 12]
    for row in rows:
        tokens_per_s = row["global_batch_size"] * 128 / row["step_time_s"]
        assert row["tokens_per_s"] == pytest.approx(tokens_per_s, abs=0.1)
        for column, causal in (("mfu", False), ("mfu_causal", True)):
            flops = flops_per_token(resolved.config.model, sequence_length=128, causal=causal)
            assert row[column] == pytest.approx(tokens_per_s * flops / (PEAK_TFLOPS * 1e12))
        assert row["mfu_causal"] < row["mfu"]
