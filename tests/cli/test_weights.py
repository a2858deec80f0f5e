import json
import subprocess
from pathlib import Path

import pytest

from commands import run_command
from rampcli.cli.weights import LONG_TO_LOAD_BYTES, loading_note
from rampcli.models.huggingface_config import to_huggingface
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import Checkpoint
from rampcli.runs.rows import read_rows
from rampcli.settings.model import ModelConfig

SMALL = [
    "model.num_layers=1",
    "model.hidden_size=32",
    "model.ffn_hidden_size=48",
    "data.sequence_length=32",
    "model.rampup_batch_size=null",
]
SHORT = [
    "trainer.num_nodes=1",
    "trainer.max_samples=32",
    "trainer.val_samples=8",
    "trainer.accelerator=cpu",
]


def call(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_command(words, cwd=cwd)


def validation_losses(run: Path, column: str = "loss") -> list[float]:
    rows = read_rows(RunDirectory(run).events)
    return [row[column] for row in rows if row["event"] == "validation" and column in row]


def test_a_trained_model_is_exported_imported_trained_further_and_generates_text(
    tmp_path,
):
    average = ("--average", "merge")
    averaging = ("average.ema=1000", "average.merge=last:2", "checkpoint.every_steps=1", *SHORT)
    trained = call("pretrain", "-f", "llama3_tiny", *SMALL, *averaging, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    exported = call("export", "runs/llama3_tiny", "out", *average, cwd=tmp_path)
    assert (exported.returncode, exported.stderr) == (0, "")
    assert (
        exported.stdout
        == "wrote out: step 2, average merge, steps [1, 2], class LlamaForCausalLM, dtype"
        " float32, tokenizer 256 tokens, eos_token_id None\n"
    )
    imported = call("import", "out", "mine/model/small.yaml", cwd=tmp_path)
    assert (imported.returncode, imported.stderr) == (0, "")
    assert "--config-dir mine model=small" in imported.stdout
    words = [
        "--config-dir",
        "mine",
        "model=small",
        "name=second",
        "data.sequence_length=32",
        "model.rampup_batch_size=null",
    ]
    further = call(
        "pretrain", "-f", "llama3_tiny", *words, "model.global_batch_size=16", *SHORT, cwd=tmp_path
    )
    assert further.returncode == 0, further.stderr
    first, second = (
        validation_losses(tmp_path / "runs/llama3_tiny", "merge_loss"),
        validation_losses(tmp_path / "runs/second"),
    )
    assert second[0] == pytest.approx(first[-1], abs=1e-6)
    assert first[-1] != validation_losses(tmp_path / "runs/llama3_tiny")[-1]
    assert second[-1] < second[0]
    shown = call("generate", "runs/llama3_tiny", "-p", "def é", "--average", "ema", cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith("def é")
    assert len(shown.stdout) > len("def é\n")
    shown = call(
        "generate", "runs/llama3_tiny", "-p", "def é", "--temperature", "inf", cwd=tmp_path
    )
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr.startswith("error: --temperature inf")
    for shard in (tmp_path / "runs/llama3_tiny/checkpoints").glob("*/shard-*"):
        shard.write_bytes(shard.read_bytes()[:-1])
    exported = call("export", "runs/llama3_tiny", "again", cwd=tmp_path)
    assert (exported.returncode, exported.stdout) == (5, "")
    assert exported.stderr.startswith(
        "error: runs/llama3_tiny has no complete checkpoint: step_00000002 is damaged: "
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "out", "runs"]


def test_a_model_of_another_shape_is_refused_with_the_settings_that_fit(rampcli, tmp_path):
    (tmp_path / "theirs").mkdir()
    theirs = to_huggingface(
        ModelConfig(num_layers=1, hidden_size=32, ffn_hidden_size=224),
        sequence_length=32,
        dtype="float32",
    )
    (tmp_path / "theirs/config.json").write_text(json.dumps(theirs))
    (tmp_path / "theirs/model.safetensors").touch()
    ended = rampcli("pretrain", "-f", "llama3_tiny", "model.init_from=theirs")
    assert ended.exit_code == 2
    assert (
        "model.num_layers=5, model.hidden_size=128, model.head_size=32, model.num_query_groups=2"
        in ended.stderr
    )
    assert (
        "try:    model.num_layers=1 model.hidden_size=32 model.head_size=8 model.num_query_groups=4"
        in ended.stderr
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["generate", "nowhere", "-p", "x"], 2, "nowhere is not a run directory"),
        (["generate", "begun", "-p", "x"], 5, "begun has no checkpoint yet"),
        (["generate", "begun", "-p", "x", "--top-k", "0"], 2, "invalid value for '--top-k'"),
        (
            ["generate", "begun", "-p", "x", "--max-tokens", "-1"],
            2,
            "invalid value for '--max-tokens'",
        ),
        (["export", "nowhere", "x"], 2, "nowhere is not a run directory"),
        (["export", "begun", "x", "--dtype", "fp8"], 2, "neither fp32 nor bf16"),
        (["export", "begun", "x", "--average", "swa"], 2, "--average swa is not ema, merge"),
        (["export", "begun", "x", "--average", "last:1"], 2, "--average last:1 is not"),
        (["import", "./nowhere", "mine/model/x.yaml"], 2, "cannot read nowhere/config.json"),
        (["import", "nowhere", "mine/model/x.yaml"], 2, "nowhere is not a path here"),
        (["import", "begun", "x.yaml"], 2, "x.yaml is not a file of the group model"),
    ],
)
def test_a_missing_run_checkpoint_or_folder_gives_one_message_without_torch(
    rampcli, tmp_path, words, code, said
):
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.yaml").touch()
    ended = rampcli(*words)
    assert (ended.exit_code, ended.stdout) == (code, "")
    assert ended.stderr.startswith("error: ")
    assert said in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["begun"]


def test_weights_in_a_pickle_are_not_read(tmp_path):
    (tmp_path / "theirs").mkdir()
    config = {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 16}
    (tmp_path / "theirs/config.json").write_text(json.dumps(config))
    (tmp_path / "theirs/pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch canary'\ntR.")
    done = call("import", "theirs", "mine/model/x.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "theirs holds no *.safetensors" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["theirs"]


def test_a_checkpoint_that_takes_long_to_load_is_announced():
    small, large = (
        Checkpoint(Path(f"runs/a\x1b/checkpoints/step_{step}"), {"step": step, "files": files})
        for step, files in (
            (1, {"a": {"bytes": 5_000_000}}),
            (2, {"a": {"bytes": LONG_TO_LOAD_BYTES}, "b": {"bytes": 500_000_000}}),
        )
    )
    both = [small, large]
    newest = r"loading step 2 of runs/a\x1b: 1.5 GB"
    assert loading_note(both, None, is_watched=False) == newest
    assert loading_note(both, 2, is_watched=True) == newest
    assert loading_note(both, 1, is_watched=False) is None
    assert loading_note(both, 1, is_watched=True) == r"loading step 1 of runs/a\x1b: 5.0 MB"
