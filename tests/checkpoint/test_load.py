import os

import pytest
import torch

from harms import HARMS, cut
from rampcli.checkpoint.load import load_model, open_run
from rampcli.checkpoint.save import Checkpoints
from rampcli.checkpoint.state import TrainingState
from rampcli.config.snapshot import identity, to_yaml
from rampcli.data.tokenizer import byte_tokenizer
from rampcli.errors import DamagedFileError, ForeignCheckpointError, NoCheckpointError
from rampcli.files.guarded_folder import write_json
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import MANIFEST, complete_checkpoints


@pytest.fixture
def run(build_passes, small_llama, tmp_path) -> RunDirectory:
    """A run with two checkpoints, in which all weights are 1 and 2."""
    run = RunDirectory(tmp_path)
    run.config.write_text(to_yaml(small_llama))
    parts = build_passes(small_llama).parts
    facts = {"corpus": "corpus", "settings": identity(small_llama)}
    checkpoints = Checkpoints(
        run, parts, [], keep_last=2, facts=facts, tokenizer=byte_tokenizer().to_str()
    )
    for step in (1, 2):
        for parameter in parts[0].parameters():
            torch.nn.init.constant_(parameter, step)
        checkpoints.save(TrainingState(step=step, consumed_samples=4 * step))
    return run


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_a_damaged_checkpoint_is_skipped_with_a_warning(run, harm, capsys):
    harm(complete_checkpoints(run)[-1])
    config, checkpoint = open_run(run.path, step=None)
    model = load_model(config, checkpoint, torch.device("cpu"))
    assert all((parameter == 1).all() for parameter in model.parameters())
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith("warning: ")
    assert "step_00000002" in warning
    assert "is damaged" in warning


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
@pytest.mark.parametrize("step", [None, 2])
def test_if_every_checkpoint_is_damaged_one_error_says_why(run, harm, step, capsys):
    for checkpoint in complete_checkpoints(run):
        if step in (None, checkpoint.step):
            harm(checkpoint)
    with pytest.raises((NoCheckpointError, DamagedFileError), match="is damaged") as refused:
        open_run(run.path, step=step)
    assert refused.value.exit_code == 5
    assert capsys.readouterr().err == ""


def test_damage_to_an_older_checkpoint_is_not_reported(run, capsys):
    cut(complete_checkpoints(run)[0])
    assert open_run(run.path, step=None)[1].step == 2
    assert capsys.readouterr().err == ""


def test_a_damaged_manifest_counts_only_where_it_is_asked_for(run, capsys):
    old, _ = complete_checkpoints(run)
    (old.path / MANIFEST).write_text("{")
    assert open_run(run.path, step=None)[1].step == 2
    assert capsys.readouterr().err == ""
    with pytest.raises(NoCheckpointError) as refused:
        open_run(run.path, step=3)
    assert refused.value.message == f"{run.path} has no complete checkpoint of step 3"
    with pytest.raises(
        NoCheckpointError, match=r"complete checkpoint of step 1: .*Expecting property name"
    ):
        open_run(run.path, step=1)


def test_a_config_yaml_of_another_model_is_refused(run, small_llama):
    small_llama.model.ffn_hidden_size = 64
    run.config.write_text(to_yaml(small_llama))
    with pytest.raises(ForeignCheckpointError, match=r"model\.ffn_hidden_size=48 \(here 64\)"):
        open_run(run.path, step=None)


@pytest.mark.parametrize(
    "change",
    [
        {"vocab_size": 10**6},
        {"hidden_size": 4096},
        {"num_layers": 3},
        {"ffn_hidden_size": 47},
        {"bias": True},
    ],
)
def test_files_of_another_model_are_refused_even_with_a_matching_manifest(run, small_llama, change):
    for name, value in change.items():
        setattr(small_llama.model, name, value)
    run.config.write_text(to_yaml(small_llama))
    for checkpoint in complete_checkpoints(run):
        write_json(
            checkpoint.path / MANIFEST, checkpoint.manifest | {"settings": identity(small_llama)}
        )
    with pytest.raises(NoCheckpointError, match="is damaged"):
        open_run(run.path, step=None)


def test_files_too_large_for_the_model_are_refused_before_they_are_read(run):
    for checkpoint in complete_checkpoints(run):
        (name,) = (name for name in checkpoint.files if name.startswith("shard"))
        os.truncate(checkpoint.path / name, 2**40)  # holes: it takes no room on the disk
        files = checkpoint.files | {name: checkpoint.files[name] | {"bytes": 2**40}}
        write_json(checkpoint.path / MANIFEST, checkpoint.manifest | {"files": files})
    with pytest.raises(NoCheckpointError, match="its files have 1,099,511,627,776 bytes"):
        open_run(run.path, step=None)
