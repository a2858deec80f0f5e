import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import rampcli.weights.export as export_module
from harms import BEHIND_AN_HONEST_MANIFEST, flip
from models.families import FAMILIES
from rampcli.checkpoint.load import load_model, open_run
from rampcli.checkpoint.save import Checkpoints
from rampcli.checkpoint.state import TrainingState
from rampcli.config import snapshot
from rampcli.data.special_tokens import SpecialTokens
from rampcli.data.tokenizer import byte_tokenizer, character_tokenizer
from rampcli.errors import DamagedFileError, NoCheckpointError, UsageError
from rampcli.models.decoder import Decoder
from rampcli.models.huggingface_config import read_config
from rampcli.models.initialize import WeightFolder
from rampcli.models.sampler import Sampling, generate_tokens
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import complete_checkpoints
from rampcli.train.build import fill_weights
from rampcli.weights.export import export

SMALL = character_tokenizer(map(chr, range(128)))
TOKENS = torch.randint(128, (2, 16), generator=torch.Generator().manual_seed(0))


def load_in_transformers(folder):
    from transformers import AutoModelForCausalLM  # imports take a second

    return AutoModelForCausalLM.from_pretrained(folder)


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_computes_the_same_logits_from_exported_weights(family, trained, tmp_path):
    run, model = trained(family)
    written = export(run, tmp_path / "out")
    theirs = load_in_transformers(tmp_path / "out")
    assert (written["step"], written["class"], written["tokenizer"]) == (
        3,
        type(theirs).__name__,
        None,
    )
    torch.testing.assert_close(theirs(TOKENS).logits, model(TOKENS), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["gpt3", "qwen3"])
def test_weights_exported_to_several_files_are_read_back_bit_for_bit(
    family, trained, tmp_path, monkeypatch
):
    monkeypatch.setattr(export_module, "MAX_FILE_BYTES", 50_000)
    run, model = trained(family)
    export(run, tmp_path / "out")
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 2
    again = Decoder(read_config(tmp_path / "out"), sequence_length=16)
    fill_weights(again, WeightFolder(tmp_path / "out", again.model, sequence_length=16).rows_of)
    for name, parameter in model.named_parameters():
        assert torch.equal(again.get_parameter(name), parameter)
    torch.testing.assert_close(
        load_in_transformers(tmp_path / "out")(TOKENS).logits,
        model(TOKENS),
        atol=1e-5,
        rtol=1e-5,
    )


def test_bf16_weights_are_exported_as_bf16(trained, tmp_path):
    run, model = trained("llama31")
    assert export(run, tmp_path / "out", dtype="bf16")["dtype"] == "bfloat16"
    theirs = load_in_transformers(tmp_path / "out")
    assert theirs.dtype is torch.bfloat16
    assert torch.equal(theirs.lm_head.weight, model.output.weight.bfloat16())


def test_an_average_is_exported_and_one_that_the_checkpoint_lacks_is_refused(trained, tmp_path):
    run, model = trained("llama3", average_share=0.5)
    assert export(run, tmp_path / "out", average="ema")["average"] == "ema"
    theirs = load_in_transformers(tmp_path / "out")
    assert torch.equal(theirs.lm_head.weight, model.output.weight / 2)
    assert "average" not in export(run, tmp_path / "weights")
    shutil.rmtree(tmp_path / "run")
    run, _ = trained("llama3")
    with pytest.raises(UsageError) as refused:
        export(run, tmp_path / "other", average="ema")
    assert refused.value.message == (
        f"--average ema: {run}/checkpoints/step_00000003 holds no average of the weights"
    )
    assert not (tmp_path / "other").exists()


@pytest.fixture
def three(trained):
    """A run with checkpoints of steps 3, 6 and 9: weights, and 2 and 6 times the weights."""
    path, model = trained("llama3")
    run, config = RunDirectory(path), snapshot.read(path / "config.yaml")
    facts = {"corpus": "corpus", "settings": snapshot.identity(config)}
    checkpoints = Checkpoints(run, [model], [], keep_last=3, facts=facts)
    for step, factor in ((6, 2), (9, 3)):
        with torch.no_grad():
            for weight in model.parameters():
                weight *= factor
        checkpoints.save(TrainingState(step=step, consumed_samples=4 * step))
    return path, model.output.weight.detach() / 6


@pytest.mark.parametrize(
    ("average", "step", "steps", "mean"),
    [
        ("last:2", None, [6, 9], 4.0),
        ("last:3", 9, [3, 6, 9], 3.0),
        ("last:2", 6, [3, 6], 1.5),
        ("merge", None, [6, 9], 4.0),
    ],
)
def test_the_mean_of_checkpoints_is_exported_in_several_files(
    average, step, steps, mean, three, tmp_path, monkeypatch
):
    monkeypatch.setattr(export_module, "MAX_FILE_BYTES", 50_000)
    run, weight = three
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("merge: null", "merge: last:2"))
    written = export(run, tmp_path / "out", step=step, average=average)
    assert (written["average"], written["steps"]) == (average, steps)
    theirs = load_in_transformers(tmp_path / "out")
    torch.testing.assert_close(theirs.lm_head.weight, mean * weight)


@pytest.mark.parametrize(
    ("average", "said"),
    [
        ("last:4", "last:4 needs 4 checkpoints up to step 9, and {run} has 3"),
        ("merge", "average.merge is null in {run}/config.yaml"),
    ],
)
def test_a_mean_that_a_run_cannot_have_is_refused(average, said, three, tmp_path):
    run, _ = three
    with pytest.raises(UsageError) as refused:
        export(run, tmp_path / "out", average=average)
    assert refused.value.message == f"--average {average}: {said.format(run=run)}"


def test_a_mean_with_a_damaged_checkpoint_is_refused(three, tmp_path):
    run, _ = three
    flip(complete_checkpoints(RunDirectory(run))[0])
    with pytest.raises(DamagedFileError, match="step_00000003 is damaged"):
        export(run, tmp_path / "out", average="last:3")
    assert export(run, tmp_path / "out", average="last:2")["steps"] == [6, 9]


def test_the_tokenizer_is_exported_with_the_weights(trained, tmp_path):
    model = replace(FAMILIES["llama3"], vocab_size=256)
    run, _ = trained("llama3", byte_tokenizer().to_str(), model)
    export(run, tmp_path / "out")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "def f(é):\n\treturn  '€' # \x00"
    assert tokenizer(text)["input_ids"] == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text


@torch.no_grad()
@pytest.mark.parametrize("count", [0, 1, 2])
def test_transformers_stops_where_rampcli_does(trained, tmp_path, count):
    """The ends are tokens that the model draws after others, the later ones first."""
    prompt, most = [5, 17, 99], 13
    sampling = Sampling(temperature=0, max_tokens=most)
    _, model = trained("llama3")
    free = list(generate_tokens(model, prompt, sampling=sampling))
    ends = tuple(list(dict.fromkeys(free))[: -count - 1 : -1])
    shutil.rmtree(tmp_path / "run")
    run, model = trained(
        "llama3", special_tokens=SpecialTokens(ends=ends), tokenizer=SMALL.to_str()
    )
    ours = list(generate_tokens(model, prompt, sampling=replace(sampling, stops=ends)))
    export(run, tmp_path / "out")
    theirs = load_in_transformers(tmp_path / "out")
    drawn = theirs.generate(torch.tensor([prompt]), max_new_tokens=most, do_sample=False)
    assert drawn[0, len(prompt) :].tolist() == ours
    assert ours == free if not ends else 1 < len(ours) < most


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(trained, tmp_path):
    run, _ = trained("llama3", byte_tokenizer().to_str())  # 256 tokens, and the model has 128
    with pytest.raises(DamagedFileError, match="has tokens that the model does not have"):
        export(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_is_chosen_by_its_step_and_no_folder_is_overwritten(trained, tmp_path):
    run, model = trained("llama3")
    export(run, tmp_path / "out", step=3)
    with pytest.raises(UsageError, match="is not empty"):
        export(run, tmp_path / "out")
    with pytest.raises(NoCheckpointError, match="step 4"):
        export(run, tmp_path / "other", step=4)
    assert not (tmp_path / "other").exists()
    config, checkpoint = open_run(run, step=None)
    loaded = load_model(config, checkpoint, torch.device("cpu"))
    assert torch.equal(loaded(TOKENS), model(TOKENS))


def test_a_model_unknown_to_transformers_is_refused_before_anything_is_written(trained, tmp_path):
    model = replace(FAMILIES["mistral"], qk_norm=True)
    run, _ = trained("llama3", model=model)
    with pytest.raises(UsageError, match="transformers has no class"):
        export(run, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_an_unrelated_folder_is_left_alone_whatever_its_name(trained, tmp_path):
    run, _ = trained("llama3")
    (tmp_path / "out.tmp").mkdir()
    (tmp_path / "out.tmp" / "thesis").write_text("mine")
    export(run, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.tmp", "run"]
    assert (tmp_path / "out.tmp" / "thesis").read_text() == "mine"


def link(path: Path) -> None:
    (path.parent / "precious").mkdir()
    path.symlink_to("precious")


TAKEN = {
    "a link to an empty folder": link,
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a file": lambda path: path.write_text("mine"),
    "a FIFO": os.mkfifo,
    "a folder that is not empty": lambda path: (path / "thesis").mkdir(parents=True),
}


@pytest.mark.parametrize("take", TAKEN.values(), ids=TAKEN)
def test_an_occupied_target_is_refused_and_not_changed(trained, tmp_path, take):
    run, _ = trained("llama3")
    take(tmp_path / "out")
    before = sorted(tmp_path.glob("**/*"))
    with pytest.raises(UsageError, match=r"is not (a folder|empty)") as refused:
        export(run, tmp_path / "out")
    assert refused.value.exit_code == 2
    assert sorted(tmp_path.glob("**/*")) == before


def test_an_empty_folder_is_used_and_parent_folders_are_created(trained, tmp_path):
    run, _ = trained("llama3")
    (tmp_path / "out").mkdir()
    for folder in (tmp_path / "out", tmp_path / "a" / "b" / "out"):
        export(run, folder)
        assert (folder / "model.safetensors").is_file()
        assert [path.name for path in folder.parent.glob(".*")] == []


@pytest.mark.parametrize(
    ("error", "raised"),
    [(KeyboardInterrupt, KeyboardInterrupt), (OSError(28, "No space left"), OSError)],
)
def test_an_interrupted_or_failed_export_leaves_no_files(
    trained, tmp_path, monkeypatch, error, raised
):
    run, _ = trained("llama3")

    def fail(*_):
        raise error

    monkeypatch.setattr(export_module, "write_json", fail)  # fails after the weights are written
    with pytest.raises(raised):
        export(run, tmp_path / "a" / "b" / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_error_of_the_safetensors_library_gives_one_message_and_leaves_no_files(
    trained, tmp_path
):
    run, _ = trained("llama3")
    given = dict.fromkeys(("step", "dtype", "average"))
    options = {"run_dir": str(run), "folder": str(tmp_path / "out"), **given}
    program = [sys.executable, "-P", "-m", "rampcli.weights.export", json.dumps(options)]
    done = subprocess.run(
        ["prlimit", "--fsize=10000", *program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: File too large: {tmp_path / 'out'}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_incomplete_weights_are_never_exported(trained, tmp_path):
    run, _ = trained("llama3")
    (checkpoint,) = complete_checkpoints(RunDirectory(run))
    for harm in BEHIND_AN_HONEST_MANIFEST:
        shutil.copytree(run, tmp_path / "harmed")
        harm(replace(checkpoint, path=tmp_path / "harmed" / "checkpoints" / checkpoint.path.name))
        with pytest.raises(NoCheckpointError, match="is damaged"):
            export(tmp_path / "harmed", tmp_path / "out")
        shutil.rmtree(tmp_path / "harmed")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
