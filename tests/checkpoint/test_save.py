import hashlib
import json
import shutil

import pytest
import torch
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_saver import save as save_by_torch

from harms import HARMS, cut, damage_the_manifest, flip, remove
from rampcli.checkpoint.compatibility import check_compatible
from rampcli.checkpoint.state import TrainingState, named_tensors
from rampcli.errors import ForeignCheckpointError, NoCheckpointError, RampcliError
from rampcli.files.guarded_folder import write_json
from rampcli.runs.manifest import MANIFEST, complete_checkpoints
from rampcli.settings.optimizers import OPTIMIZERS


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_resumes_from_a_checkpoint_bit_for_bit(small_gpt, training_of, optimizer):
    small_gpt.optim.optimizer = optimizer
    training = training_of(small_gpt)
    training.step(0)
    training.checkpoints.save(TrainingState(step=1, consumed_samples=4, order_hash="abc"))
    resumed = training_of(small_gpt)
    assert resumed.load_newest() == TrainingState(step=1, consumed_samples=4, order_hash="abc")
    assert [training.step(seed) for seed in (1, 2)] == [resumed.step(seed) for seed in (1, 2)]


def test_without_a_checkpoint_a_run_starts_at_step_0(small_llama, training_of):
    assert training_of(small_llama).load_newest() == TrainingState()


def test_only_the_last_checkpoints_are_kept_and_interrupted_saves_are_removed(
    small_llama, run, training_of
):
    training = training_of(small_llama, keep_last=2)
    (run.checkpoints / "step_00000007.tmp").mkdir(parents=True)
    training.step_and_save(1, 2, 3, 4)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == [
        "step_00000003",
        "step_00000004",
    ]


def test_a_checkpoint_holds_safetensors_and_a_manifest_and_nothing_else(
    small_llama, run, training_of
):
    training = training_of(small_llama)
    training.step_and_save(1)
    (checkpoint,) = complete_checkpoints(run)
    names = sorted(path.name for path in checkpoint.path.iterdir())
    assert names == ["manifest.json", *sorted(checkpoint.manifest["files"])]
    assert all(name.endswith(".safetensors") for name in names[1:])
    assert (checkpoint.step, checkpoint.consumed_samples, checkpoint.damage()) == (1, 4, None)


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_a_damaged_checkpoint_is_skipped_and_reported(small_llama, run, harm, training_of):
    training = training_of(small_llama)
    expected = {}
    for step in (1, 2):
        training.step_and_save(step)
        expected[step] = [
            parameter.detach().clone() for parameter in training.passes.parts[0].parameters()
        ]
    harm(complete_checkpoints(run)[-1])
    resumed = training_of(small_llama)
    assert resumed.load_newest().step == 1
    assert all(map(torch.equal, resumed.passes.parts[0].parameters(), expected[1]))
    fault = json.loads(run.events.read_text().splitlines()[-1])
    assert fault["event"] == "fault"
    assert "step_00000002" in fault["reason"]
    assert "is damaged" in fault["reason"]


@pytest.mark.parametrize("harm", [cut, remove], ids=["cut", "remove"])
def test_no_optimiser_state_is_allocated_for_a_checkpoint_of_the_wrong_size(
    small_llama, run, harm, training_of
):
    training = training_of(small_llama)
    training.step_and_save(1)
    harm(complete_checkpoints(run)[-1])
    resumed = training_of(small_llama)
    with pytest.raises(NoCheckpointError):
        resumed.load_newest()
    assert not any(optimizer.state for optimizer in resumed.optimizers)


@pytest.mark.parametrize(
    "harm", [cut, flip, remove, damage_the_manifest, "remove all", "remove the folder"]
)
def test_damage_to_checkpoints_during_training_is_repaired_by_the_next_save(
    small_llama, run, harm, training_of
):
    training = training_of(small_llama, in_background=True)
    training.step_and_save(1)
    training.checkpoints.wait()
    if callable(harm):
        harm(complete_checkpoints(run)[-1])
    else:
        shutil.rmtree(
            complete_checkpoints(run)[-1].path if harm == "remove all" else run.checkpoints
        )
    training.step_and_save(2, is_last=True)
    resumed = training_of(small_llama)
    assert resumed.load_newest().step == 2
    assert resumed.step(3) == training.step(3)


def test_checkpoints_of_other_settings_are_refused(small_llama, training_of):
    training_of(small_llama, settings={"seed": 1}).checkpoints.save(
        TrainingState(step=1, consumed_samples=4)
    )
    with pytest.raises(ForeignCheckpointError, match=r"another configuration: seed=1 \(here 2\)"):
        training_of(small_llama, settings={"seed": 2}).load_newest()


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_at_step_0(
    small_llama, run, training_of
):
    training = training_of(small_llama)
    training.step_and_save(1)
    next(complete_checkpoints(run)[0].path.glob("*.safetensors")).unlink()
    with pytest.raises(NoCheckpointError, match="damaged"):
        training.load_newest()


def test_a_checkpoint_of_another_corpus_is_refused(small_llama, training_of):
    training = training_of(small_llama)
    training.step_and_save(1)
    with pytest.raises(ForeignCheckpointError, match="another corpus"):
        training_of(small_llama, corpus="other").load_newest()


def test_a_checkpoint_may_have_the_fingerprint_of_an_earlier_version(small_llama, run, training_of):
    training = training_of(small_llama)
    training.checkpoints.save(TrainingState(step=0, consumed_samples=0))
    (checkpoint,) = complete_checkpoints(run)
    check_compatible(checkpoint, settings={}, corpus=("other", "corpus"))
    with pytest.raises(ForeignCheckpointError, match="another corpus"):
        check_compatible(checkpoint, settings={}, corpus=("other", "another"))


def test_a_failed_save_keeps_the_older_checkpoint_and_gives_the_reason(
    small_llama, run, training_of, refuse_to_save
):
    training = training_of(small_llama)
    training.step_and_save(1)
    refuse_to_save()
    with pytest.raises(
        RampcliError, match=r"cannot save the checkpoint of step 2: .* is a symbolic link"
    ):
        training.checkpoints.save(TrainingState(step=2, consumed_samples=8))
    assert [checkpoint.step for checkpoint in complete_checkpoints(run)] == [1]


def test_a_damaged_checkpoint_is_replaced_when_its_step_is_taken_again(
    small_llama, run, training_of
):
    training = training_of(small_llama, keep_last=2)
    training.step_and_save(1, 2, 3)
    next(complete_checkpoints(run)[-1].path.glob("*.safetensors")).write_bytes(b"")
    resumed = training_of(small_llama, keep_last=1)
    assert resumed.load_newest().step == 2
    resumed.step_and_save(3)
    assert [(checkpoint.step, checkpoint.damage()) for checkpoint in complete_checkpoints(run)] == [
        (3, None)
    ]


def test_a_checkpoint_written_by_torch_with_sha256_loads(small_llama, run, training_of):
    training = training_of(small_llama)
    training.step(0)
    folder = run.checkpoint_folder(1)
    tensors = {
        name: tensor.detach()
        for name, tensor, _ in named_tensors(
            training.passes.parts, training.optimizers, copies=False
        )
    }
    save_by_torch(
        tensors, storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True)
    )
    files = {
        path.name: {
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in folder.iterdir()
    }
    write_json(
        folder / MANIFEST,
        {
            "step": 1,
            "consumed_samples": 4,
            "order_hash": None,
            "corpus": "corpus",
            "settings": {},
            "files": files,
        },
    )
    resumed = training_of(small_llama)
    assert resumed.load_newest().step == 1
    assert [training.step(seed) for seed in (1, 2)] == [resumed.step(seed) for seed in (1, 2)]
