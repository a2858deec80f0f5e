import json

import pytest
import torch

from rampcli.data.loader import MicroBatch, RankBatch
from rampcli.engine.build import build_optimizer, fill_weights
from rampcli.engine.checkpoint import Checkpoints, TrainingState
from rampcli.engine.step import train_step
from rampcli.errors import ForeignCheckpointError, NoCheckpointError, RampcliError
from rampcli.models.decoder import Decoder
from rampcli.run_directory import RunDirectory

pytestmark = pytest.mark.usefixtures("alone")


class Training:
    """A model, its optimiser and its checkpoints in a run directory."""

    def __init__(self, config, run: RunDirectory, *, keep_last: int = 2, corpus: str = "corpus") -> None:
        self.model = Decoder(config.model, sequence_length=16)
        fill_weights(self.model, seed=1)
        self.optimizer = build_optimizer(self.model, config.optim)
        self.checkpoints = Checkpoints(run, self.model, self.optimizer, keep_last=keep_last, facts={"corpus": corpus, "settings": {}})

    def step(self, seed: int) -> float:
        tokens = torch.randint(64, (4, 16), generator=torch.Generator().manual_seed(seed))
        batch = RankBatch([MicroBatch(tokens, tokens)], None)
        return train_step(self.model, self.optimizer, batch, global_tokens=64, gradient_clip_val=1.0).loss


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    return RunDirectory(tmp_path)


def test_training_goes_on_from_a_checkpoint_bit_for_bit(small_gpt, run):
    training = Training(small_gpt, run)
    training.step(0)
    training.checkpoints.save(TrainingState(step=1, consumed_samples=4, order_hash="abc"))
    resumed = Training(small_gpt, run)
    assert resumed.checkpoints.load_newest() == TrainingState(step=1, consumed_samples=4, order_hash="abc")
    assert [training.step(seed) for seed in (1, 2)] == [resumed.step(seed) for seed in (1, 2)]


def test_without_a_checkpoint_a_run_starts_at_the_beginning(small_llama, run):
    assert Training(small_llama, run).checkpoints.load_newest() == TrainingState()


def test_only_the_last_checkpoints_are_kept_and_what_a_kill_left_behind_is_removed(small_llama, run):
    training = Training(small_llama, run, keep_last=2)
    (run.checkpoints / "step_00000007.tmp").mkdir(parents=True)
    for step in range(1, 5):
        training.step(step)
        training.checkpoints.save(TrainingState(step=step, consumed_samples=4 * step))
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["step_00000003", "step_00000004"]


def test_a_checkpoint_holds_safetensors_and_a_manifest_and_nothing_else(small_llama, run):
    training = Training(small_llama, run)
    training.step(0)
    training.checkpoints.save(TrainingState(step=1, consumed_samples=4))
    (checkpoint,) = run.complete_checkpoints()
    names = sorted(path.name for path in checkpoint.path.iterdir())
    assert names == ["manifest.json", *sorted(checkpoint.manifest["files"])]
    assert all(name.endswith(".safetensors") for name in names[1:])
    assert (checkpoint.step, checkpoint.consumed_samples, checkpoint.damage()) == (1, 4, None)


@pytest.mark.parametrize("harm", ["cut", "flip", "remove"])
def test_a_damaged_checkpoint_is_passed_over_and_said(small_llama, run, harm):
    training = Training(small_llama, run)
    for step in (1, 2):
        training.step(step)
        training.checkpoints.save(TrainingState(step=step, consumed_samples=4 * step))
    harmed = next(run.complete_checkpoints()[-1].path.glob("*.safetensors"))
    content = bytearray(harmed.read_bytes())
    content[-1] ^= 1
    harmed.write_bytes(content[:-8] if harm == "cut" else content)
    if harm == "remove":
        harmed.unlink()
    assert training.checkpoints.load_newest().step == 1
    fault = json.loads(run.events.read_text().splitlines()[-1])
    assert fault["event"] == "fault"
    assert "step_00000002 is damaged" in fault["reason"]


def test_where_every_checkpoint_is_damaged_the_run_does_not_start_anew_by_itself(small_llama, run):
    training = Training(small_llama, run)
    training.step(0)
    training.checkpoints.save(TrainingState(step=1, consumed_samples=4))
    next(run.complete_checkpoints()[0].path.glob("*.safetensors")).unlink()
    with pytest.raises(NoCheckpointError, match="damaged"):
        training.checkpoints.load_newest()


def test_a_checkpoint_of_another_corpus_is_refused(small_llama, run):
    training = Training(small_llama, run)
    training.step(0)
    training.checkpoints.save(TrainingState(step=1, consumed_samples=4))
    with pytest.raises(ForeignCheckpointError, match="another corpus"):
        Training(small_llama, run, corpus="other").checkpoints.load_newest()


def test_a_failed_save_leaves_the_older_checkpoint_and_says_why(small_llama, run):
    training = Training(small_llama, run)
    training.step(0)
    training.checkpoints.save(TrainingState(step=1, consumed_samples=4))
    (run.checkpoints / "step_00000002.tmp").write_text("a file where a folder belongs")
    with pytest.raises(RampcliError, match="cannot save the checkpoint of step 2"):
        training.checkpoints.save(TrainingState(step=2, consumed_samples=8))
    assert [checkpoint.step for checkpoint in run.complete_checkpoints()] == [1]
