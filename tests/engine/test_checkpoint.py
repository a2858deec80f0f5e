import json

import pytest
import torch

from rampcli.config.choices import Optimizer
from rampcli.data.loader import MicroBatch
from rampcli.engine.checkpoint import Checkpoints, TrainingState
from rampcli.engine.optimizers import build_optimizers
from rampcli.engine.step import follow_gradient
from rampcli.errors import ForeignCheckpointError, NoCheckpointError, RampcliError
from rampcli.run_directory import RunDirectory


class Training:
    """A model, its optimisers and its checkpoints in a run directory."""

    def __init__(self, passes, optim, run: RunDirectory, *, keep_last: int = 2, corpus: str = "corpus") -> None:
        self.passes = passes
        self.optimizers = build_optimizers(passes.parts, optim)
        self.checkpoints = Checkpoints(run, passes.parts, self.optimizers, keep_last=keep_last, facts={"corpus": corpus, "settings": {}})

    def step(self, seed: int) -> float:
        tokens = torch.randint(64, (4, 16), generator=torch.Generator().manual_seed(seed))
        result = follow_gradient(self.passes, [MicroBatch(tokens, tokens)], global_tokens=64, gradient_clip_val=1.0)
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


@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_training_goes_on_from_a_checkpoint_bit_for_bit(small_gpt, training_of, optimizer):
    small_gpt.optim.optimizer = optimizer
    training = training_of(small_gpt)
    training.step(0)
    training.checkpoints.save(TrainingState(step=1, consumed_samples=4, order_hash="abc"))
    resumed = training_of(small_gpt)
    assert resumed.checkpoints.load_newest() == TrainingState(step=1, consumed_samples=4, order_hash="abc")
    assert [training.step(seed) for seed in (1, 2)] == [resumed.step(seed) for seed in (1, 2)]


def test_without_a_checkpoint_a_run_starts_at_the_beginning(small_llama, training_of):
    assert training_of(small_llama).checkpoints.load_newest() == TrainingState()


def test_only_the_last_checkpoints_are_kept_and_what_a_kill_left_behind_is_removed(small_llama, run, training_of):
    training = training_of(small_llama, keep_last=2)
    (run.checkpoints / "step_00000007.tmp").mkdir(parents=True)
    for step in range(1, 5):
        training.step(step)
        training.checkpoints.save(TrainingState(step=step, consumed_samples=4 * step))
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["step_00000003", "step_00000004"]


def test_a_checkpoint_holds_safetensors_and_a_manifest_and_nothing_else(small_llama, run, training_of):
    training = training_of(small_llama)
    training.step(0)
    training.checkpoints.save(TrainingState(step=1, consumed_samples=4))
    (checkpoint,) = run.complete_checkpoints()
    names = sorted(path.name for path in checkpoint.path.iterdir())
    assert names == ["manifest.json", *sorted(checkpoint.manifest["files"])]
    assert all(name.endswith(".safetensors") for name in names[1:])
    assert (checkpoint.step, checkpoint.consumed_samples, checkpoint.damage()) == (1, 4, None)


@pytest.mark.parametrize("harm", ["cut", "flip", "remove"])
def test_a_damaged_checkpoint_is_passed_over_and_said(small_llama, run, harm, training_of):
    training = training_of(small_llama)
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


def test_where_every_checkpoint_is_damaged_the_run_does_not_start_anew_by_itself(small_llama, run, training_of):
    training = training_of(small_llama)
    training.step(0)
    training.checkpoints.save(TrainingState(step=1, consumed_samples=4))
    next(run.complete_checkpoints()[0].path.glob("*.safetensors")).unlink()
    with pytest.raises(NoCheckpointError, match="damaged"):
        training.checkpoints.load_newest()


def test_a_checkpoint_of_another_corpus_is_refused(small_llama, training_of):
    training = training_of(small_llama)
    training.step(0)
    training.checkpoints.save(TrainingState(step=1, consumed_samples=4))
    with pytest.raises(ForeignCheckpointError, match="another corpus"):
        training_of(small_llama, corpus="other").checkpoints.load_newest()


def test_a_failed_save_leaves_the_older_checkpoint_and_says_why(small_llama, run, training_of):
    training = training_of(small_llama)
    training.step(0)
    training.checkpoints.save(TrainingState(step=1, consumed_samples=4))
    (run.checkpoints / "step_00000002.tmp").write_text("a file where a folder belongs")
    with pytest.raises(RampcliError, match="cannot save the checkpoint of step 2"):
        training.checkpoints.save(TrainingState(step=2, consumed_samples=8))
    assert [checkpoint.step for checkpoint in run.complete_checkpoints()] == [1]
