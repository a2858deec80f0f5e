import hashlib
import json
import shutil
import threading

import pytest
import torch
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_saver import save as save_by_torch

from harms import HARMS, cut, damage_the_manifest, flip, remove
from rampcli.checkpoint import save as checkpoint_module
from rampcli.checkpoint.load import load_newest
from rampcli.checkpoint.manifest import MANIFEST, complete_checkpoints
from rampcli.checkpoint.save import Checkpoints
from rampcli.checkpoint.shards import HostCopies
from rampcli.checkpoint.state import TrainingState, named_tensors
from rampcli.config.choices import Optimizer
from rampcli.data.loader import MicroBatch
from rampcli.errors import ForeignCheckpointError, NoCheckpointError, RampcliError
from rampcli.own_folder import write_json
from rampcli.run_directory import RunDirectory
from rampcli.train.optimizers import build_optimizers
from rampcli.train.step import accumulate_gradient


class Training:
    """A model, its optimisers and its checkpoints in a run directory."""

    def __init__(
        self,
        passes,
        optim,
        run: RunDirectory,
        *,
        keep_last: int = 2,
        corpus: str = "corpus",
        settings: dict | None = None,
        in_background: bool = False,
    ) -> None:
        self.passes = passes
        self.optimizers = build_optimizers(passes.parts, optim)
        self.checkpoints = Checkpoints(
            run,
            passes.parts,
            self.optimizers,
            keep_last=keep_last,
            facts={"corpus": corpus, "settings": settings or {}},
            in_background=in_background,
        )

    def load_newest(self) -> TrainingState:
        facts = self.checkpoints.facts
        return load_newest(
            self.checkpoints.run,
            self.passes.parts,
            self.optimizers,
            settings=facts["settings"],
            corpus=facts["corpus"],
        )

    def step(self, seed: int) -> float:
        tokens = torch.randint(64, (4, 16), generator=torch.Generator().manual_seed(seed))
        result = accumulate_gradient(
            self.passes, [MicroBatch(tokens, tokens)], global_tokens=64, gradient_clip_val=1.0
        )
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return result.loss


@pytest.fixture
def training_of(build_passes, run):
    def build(config, **settings) -> Training:
        return Training(build_passes(config), config.optim, run, **settings)

    return build


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    return RunDirectory(tmp_path)


def refuse_to_save(run: RunDirectory) -> None:
    """Replaces the checkpoints folder by a link, through which nothing is written."""
    run.checkpoints.rename(run.path / "elsewhere")
    run.checkpoints.symlink_to("elsewhere")


@pytest.mark.parametrize("optimizer", list(Optimizer))
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
    for step in range(1, 5):
        training.step(step)
        training.checkpoints.save(TrainingState(step=step, consumed_samples=4 * step))
    assert sorted(path.name for path in run.checkpoints.iterdir()) == [
        "step_00000003",
        "step_00000004",
    ]


def test_a_checkpoint_holds_safetensors_and_a_manifest_and_nothing_else(
    small_llama, run, training_of
):
    training = training_of(small_llama)
    training.step(0)
    training.checkpoints.save(TrainingState(step=1, consumed_samples=4))
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
        training.step(step)
        training.checkpoints.save(TrainingState(step=step, consumed_samples=4 * step))
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
    training.step(0)
    training.checkpoints.save(TrainingState(step=1, consumed_samples=4))
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
    training.step(1)
    training.checkpoints.save(TrainingState(step=1, consumed_samples=4))
    training.checkpoints.wait()
    if callable(harm):
        harm(complete_checkpoints(run)[-1])
    else:
        shutil.rmtree(
            complete_checkpoints(run)[-1].path if harm == "remove all" else run.checkpoints
        )
    training.step(2)
    training.checkpoints.save(TrainingState(step=2, consumed_samples=8), is_last=True)
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
    training.step(0)
    training.checkpoints.save(TrainingState(step=1, consumed_samples=4))
    next(complete_checkpoints(run)[0].path.glob("*.safetensors")).unlink()
    with pytest.raises(NoCheckpointError, match="damaged"):
        training.load_newest()


def test_a_checkpoint_of_another_corpus_is_refused(small_llama, training_of):
    training = training_of(small_llama)
    training.step(0)
    training.checkpoints.save(TrainingState(step=1, consumed_samples=4))
    with pytest.raises(ForeignCheckpointError, match="another corpus"):
        training_of(small_llama, corpus="other").load_newest()


def test_a_failed_save_keeps_the_older_checkpoint_and_gives_the_reason(
    small_llama, run, training_of
):
    training = training_of(small_llama)
    training.step(0)
    training.checkpoints.save(TrainingState(step=1, consumed_samples=4))
    refuse_to_save(run)
    with pytest.raises(
        RampcliError, match=r"cannot save the checkpoint of step 2: .* is a symbolic link"
    ):
        training.checkpoints.save(TrainingState(step=2, consumed_samples=8))
    assert [checkpoint.step for checkpoint in complete_checkpoints(run)] == [1]


def test_a_damaged_checkpoint_is_replaced_when_its_step_is_taken_again(
    small_llama, run, training_of
):
    training = training_of(small_llama, keep_last=2)
    for step in (1, 2, 3):
        training.step(step)
        training.checkpoints.save(TrainingState(step=step, consumed_samples=4 * step))
    next(complete_checkpoints(run)[-1].path.glob("*.safetensors")).write_bytes(b"")
    resumed = training_of(small_llama, keep_last=1)
    assert resumed.load_newest().step == 2
    resumed.step(3)
    resumed.checkpoints.save(TrainingState(step=3, consumed_samples=12))
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


@pytest.fixture
def slow_copies(monkeypatch):
    """Makes copies to host memory wait for an event."""
    go = threading.Event()
    copies = HostCopies._copy

    def wait_and_copy(self, tensors):
        assert go.wait(10)
        return copies(self, tensors)

    monkeypatch.setattr(HostCopies, "_copy", wait_and_copy)
    return go


@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_training_during_a_save_does_not_change_what_is_saved(
    small_gpt, run, training_of, slow_copies, tmp_path, optimizer, monkeypatch
):
    """Even if the copy is made only when the next step is about to change the weights."""
    small_gpt.optim.optimizer = optimizer
    training = training_of(small_gpt, in_background=True)
    training.step(0)
    training.checkpoints.save(TrainingState(step=1, consumed_samples=4))
    wait_for_copy = Checkpoints._wait_for_copy

    def wait(self):
        threading.Timer(0.2, slow_copies.set).start()
        wait_for_copy(self)

    monkeypatch.setattr(Checkpoints, "_wait_for_copy", wait)
    for seed in (1, 2, 3):
        training.step(seed)
    assert training.checkpoints.stall_s > 0.1
    training.checkpoints.wait()
    waiting = training_of(small_gpt)
    waiting.checkpoints.run = RunDirectory(tmp_path / "waiting")
    waiting.checkpoints.run.path.mkdir()
    waiting.step(0)
    waiting.checkpoints.save(TrainingState(step=1, consumed_samples=4))
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


def test_host_memory_is_reused_from_save_to_save(small_llama, training_of):
    training = training_of(small_llama, in_background=True)
    places = []
    for step in (1, 2, 3):
        training.step(step)
        training.checkpoints.save(TrainingState(step=step, consumed_samples=4 * step))
        training.checkpoints.wait()
        places.append(
            {
                name: tensor.data_ptr()
                for name, tensor in training.checkpoints._copies._memory.items()
            }
        )
    assert places[0] == places[1] == places[2]


def test_a_save_waits_for_the_previous_one(small_llama, run, training_of):
    training = training_of(small_llama, in_background=True)
    saved = []
    for step in (1, 2):
        training.step(step)
        state = TrainingState(step=step, consumed_samples=4 * step)
        training.checkpoints.save(state, on_saved=saved.append)
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
    small_llama, run, training_of, when, monkeypatch
):
    training = training_of(small_llama, in_background=True)
    training.step(0)
    training.checkpoints.save(TrainingState(step=1, consumed_samples=4))
    training.checkpoints.wait()
    assert not training.checkpoints.has_failed

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    if when == "folder":
        refuse_to_save(run)
    elif when == "tensors":
        monkeypatch.setattr(checkpoint_module, "write_shards", full)
    else:
        monkeypatch.setattr(RunDirectory, "write_json", full)
    training.step(1)
    training.checkpoints.save(TrainingState(step=2, consumed_samples=8))
    with pytest.raises(
        RampcliError,
        match=r"cannot save the checkpoint of step 2: .*(No space left|is a symbolic link)",
    ):
        training.checkpoints.save(TrainingState(step=3, consumed_samples=12))
    assert [checkpoint.step for checkpoint in complete_checkpoints(run)] == [1]
    if when != "folder":
        assert [path.name for path in run.checkpoints.iterdir()] == ["step_00000001"]
