"""Checkpoints that are saved in the background while training continues."""

import threading
from concurrent.futures import Future

import pytest
import torch

from processes import PATIENCE_S
from rampcli.checkpoint import save as checkpoint_module
from rampcli.checkpoint import tensor_files
from rampcli.checkpoint.shards import HostCopies
from rampcli.checkpoint.state import TrainingState
from rampcli.errors import RampcliError
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import complete_checkpoints
from rampcli.settings.optimizers import OPTIMIZERS


@pytest.fixture
def slow_copies(monkeypatch):
    """Makes copies to host memory wait for an event."""
    go = threading.Event()
    prepare = HostCopies.prepare

    def prepare_to_wait(self, tensors):
        copy = prepare(self, tensors)

        def wait_and_copy():
            assert go.wait(PATIENCE_S)
            return copy()

        return wait_and_copy

    monkeypatch.setattr(HostCopies, "prepare", prepare_to_wait)
    yield go
    go.set()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_during_a_save_does_not_change_what_is_saved(
    small_gpt, run, training_of, slow_copies, tmp_path, monkeypatch, optimizer
):
    """Even if the copy begins only when the next step waits for it, to change the weights."""
    small_gpt.optim.optimizer = optimizer
    training = training_of(small_gpt, in_background=True)
    training.step_and_save(1)
    wait = Future.exception

    def copy_and_wait(future):
        slow_copies.set()
        return wait(future)

    monkeypatch.setattr(Future, "exception", copy_and_wait)
    for seed in (1, 2, 3):
        training.step(seed)
    assert slow_copies.is_set()
    training.checkpoints.wait()
    waiting = training_of(small_gpt)
    waiting.checkpoints.run = RunDirectory(tmp_path / "waiting")
    waiting.checkpoints.run.path.mkdir()
    waiting.step_and_save(1)
    (saved,), (expected,) = (complete_checkpoints(each) for each in (run, waiting.checkpoints.run))
    assert saved.manifest == expected.manifest
    assert saved.damage() is None
    for name in saved.files:
        assert (saved.path / name).read_bytes() == (expected.path / name).read_bytes()


def test_training_resumes_from_a_background_save_bit_for_bit(small_llama, training_of):
    training = training_of(small_llama, in_background=True)
    losses = {}
    for step in range(1, 6):
        losses[step] = training.step(step)
        training.checkpoints.save(
            TrainingState(step=step, consumed_samples=4 * step), is_last=step == 5
        )
    resumed = training_of(small_llama)
    assert resumed.load_newest().step == 5
    assert resumed.step(6) == training.step(6)


def test_every_thread_that_saves_or_loads_computes_on_the_device_of_its_rank(
    small_llama, training_of, monkeypatch
):
    """In a new thread, the current device would be GPU 0 on every rank."""
    devices, names = set(), set()

    def use_device(device):
        devices.add(device.type)
        names.add(threading.current_thread().name.rpartition("_")[0])

    for module in (checkpoint_module, tensor_files):
        monkeypatch.setattr(module, "use_device", use_device)
    training = training_of(small_llama, in_background=True)
    training.step_and_save(1)
    training.checkpoints.wait()
    savers = set(names)
    training.load_newest()
    assert "checkpoint" in savers
    assert (len(savers), len(names), devices) == (2, 3, {"cpu"})


def test_host_memory_is_reused_from_save_to_save():
    copies = HostCopies()
    places = [
        {shard.name: shard.values.data_ptr() for shard in copies.prepare([named])()}
        for value in (1.0, 2.0, 3.0)
        for named in [("weight", torch.full((3, 2), value), torch.empty(3, 2))]
    ]
    assert places[0] == places[1] == places[2] != {}


def test_a_save_waits_for_the_previous_one(small_llama, run, training_of):
    training = training_of(small_llama, in_background=True)
    saved = []
    training.step_and_save(1, 2, on_saved=saved.append)
    training.checkpoints.wait()
    assert [(checkpoint.step, checkpoint.damage()) for checkpoint in complete_checkpoints(run)] == [
        (1, None),
        (2, None),
    ]
    assert [(each.step, each.consumed_samples) for each in saved] == [(1, 4), (2, 8)]
    assert all(0 <= each.stall_s <= each.save_s for each in saved)


def test_a_checkpoint_is_reported_once_it_is_complete(small_llama, run, training_of, slow_copies):
    training = training_of(small_llama, in_background=True)
    complete = []
    training.checkpoints.save(
        TrainingState(step=1, consumed_samples=4),
        on_saved=lambda saved: complete.append((saved.step, len(complete_checkpoints(run)))),
    )
    assert complete == []
    assert complete_checkpoints(run) == []
    slow_copies.set()
    training.checkpoints.wait()
    assert complete == [(1, 1)]


@pytest.mark.parametrize("when", ["folder", "tensors", "manifest"])
def test_a_failed_background_save_is_reported_at_the_next_save(
    small_llama, run, training_of, refuse_to_save, when, monkeypatch
):
    training = training_of(small_llama, in_background=True)
    training.step_and_save(1)
    training.checkpoints.wait()
    assert not training.checkpoints.has_failed

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    if when == "folder":
        refuse_to_save()
    elif when == "tensors":
        monkeypatch.setattr(checkpoint_module, "write_shards", full)
    else:
        monkeypatch.setattr(RunDirectory, "write_json", full)
    training.step_and_save(2)
    with pytest.raises(
        RampcliError,
        match=r"cannot save the checkpoint of step 2: .*(No space left|is a symbolic link)",
    ):
        training.checkpoints.save(TrainingState(step=3, consumed_samples=12))
    assert [checkpoint.step for checkpoint in complete_checkpoints(run)] == [1]
    if when != "folder":
        assert [path.name for path in run.checkpoints.iterdir()] == ["step_00000001"]
