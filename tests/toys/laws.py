"""Laws of a copy of the package with additions, which `contracts/test_additions.py` makes."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import rampcli
from commands import run_command
from models import test_parts as parts
from rampcli import llm
from rampcli.checkpoint.load import load_model, open_run
from rampcli.config.compose import apply_overrides
from rampcli.data.examples import pose
from rampcli.errors import UsageError
from rampcli.estimate.model_size import count_parameters, flops_per_token
from rampcli.models.decoder import Decoder
from rampcli.models.huggingface_config import to_huggingface
from rampcli.planning.resolve import resolve
from rampcli.runs.directory import RunDirectory
from rampcli.runs.rows import read_rows
from tiny_runs import TINY, environment

parts.MODELS["out_norm"] = replace(parts.MODEL, has_out_norm=True)
ADDED = ("geglu", "relu", "out_norm", "exact")
LONGER = (
    "model.rampup_batch_size=null",
    "model.global_batch_size=8",
    "trainer.max_steps=40",
    "trainer.num_nodes=1",
    "trainer.val_samples=0",
    "trainer.peak_tflops=1",
    "optim.lr=0.1",
    "optim.min_lr=0",
    "optim.warmup_samples=0",
    "data.sequence_length=32",
)
RUN = ("--factory", "llama3_tiny", "run_dir=run", *LONGER)
ADDITIONS = (
    "model.activation=geglu",
    "model.has_out_norm=true",
    "optim.optimizer=sgd",
    "schedule.decay_style=parabola",
    "data.source=zeros",
    "model.vocab_size=256",
)
SHORT_RUN = TINY | {
    "trainer.num_nodes": "1",
    "trainer.max_samples": "24",
    "trainer.val_samples": "0",
    "model.rampup_batch_size": "null",
}
SHORT = ["--factory", "llama3_tiny", *(f"{key}={value}" for key, value in SHORT_RUN.items())]


class House:
    """Runs commands of the copy in an empty folder."""

    def __init__(self, path: Path) -> None:
        self.here = path

    def rampcli(self, *words: str) -> str:
        """Runs a command that succeeds, and returns what it prints."""
        done = run_command(words, environment(), self.here)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def refused(self, *words: str) -> str:
        """Runs a command that is refused, and returns its message."""
        done = run_command(words, environment(), self.here)
        assert done.returncode == 2, done.stdout + done.stderr
        return done.stderr


@pytest.fixture
def house(tmp_path):
    return House(tmp_path)


def rows_of(house):
    return list(read_rows(RunDirectory(house.here / "run").metrics))


def test_the_copy_is_what_is_tested():
    assert Path(rampcli.__file__).parents[1] == Path(os.environ["PYTHONPATH"])


@pytest.mark.parametrize("name", ADDED)
def test_declarations_of_an_added_part_are_true(name):
    parts.test_the_declared_parameters_are_those_of_the_modules(name)
    parts.test_the_declared_operations_are_those_that_torch_counts(name)
    parts.test_the_declared_memory_is_that_of_the_tensors_kept_for_the_backward_pass(
        name, torch.float32
    )
    parameters = Decoder(parts.MODELS[name], sequence_length=64).parameters()
    counted = count_parameters(parts.MODELS[name], sequence_length=64)
    assert counted == sum(one.numel() for one in parameters)


def test_an_added_part_is_exported_if_transformers_has_a_class_for_it():
    exported = to_huggingface(parts.MODELS["geglu"], sequence_length=64, dtype="float32")
    assert (exported["model_type"], exported["hidden_act"]) == ("llama", "gelu")
    for name in ("relu", "out_norm", "exact"):
        with pytest.raises(UsageError, match="transformers has no class for this model"):
            to_huggingface(parts.MODELS[name], sequence_length=64, dtype="float32")


def test_added_parts_are_planned(house):
    def memory_bytes(*more: str) -> int:
        return json.loads(house.rampcli("plan", *RUN, *more, "--json"))["stages"][0]["memory_bytes"]

    usual_bytes = memory_bytes()
    assert memory_bytes("model.activation=geglu") == usual_bytes
    assert memory_bytes("model.activation=relu") < usual_bytes
    assert memory_bytes("model.has_out_norm=true") > usual_bytes
    assert memory_bytes("optim.optimizer=sgd") < usual_bytes


def test_an_added_decay_style_is_explained_beside_the_others(house):
    explained = " ".join(house.rampcli("explain", "schedule.decay_style").split())
    assert "`parabola`: a parabola." in explained


def test_added_parts_train_report_and_are_not_exported(house):
    house.rampcli("pretrain", *RUN, *ADDITIONS)
    rows = rows_of(house)
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.1
    usual = resolve(apply_overrides(llm.llama3_tiny.pretrain_recipe(), LONGER)).config.model
    flops = flops_per_token(usual, sequence_length=32)
    for row in rows:
        assert row["mfu"] * 1e12 == pytest.approx(row["tokens_per_s"] * flops, rel=1e-3)
        assert row["lr"] == pytest.approx(0.1 * (1 - (row["consumed_samples"] / 320) ** 2))
    (report,) = json.loads(house.rampcli("report", "run", "--json"))["runs"]
    assert report["metrics"] == {"toys": 47}
    assert report["stages"][-1]["wins"] == 35.5
    assert (house.here / "run/seen.txt").read_text().split() == [str(n) for n in range(1, 41)]
    assert "0 skipped" in house.rampcli("status", "run")

    said = house.refused("export", "run", "exported")
    assert "config.json has no key for model.has_out_norm" in said
    assert not (house.here / "exported").exists()


def test_an_added_family_is_exported_and_computes_what_transformers_does(house):
    from transformers import AutoModelForCausalLM  # imports take a second

    words = ["model.normalization=layernorm", "model.activation=gelu", "model.bias=true"]
    house.rampcli("pretrain", *SHORT, *words, "run_dir=run")
    house.rampcli("export", "run", "exported")
    theirs = AutoModelForCausalLM.from_pretrained(house.here / "exported")
    assert type(theirs).__name__ == "Starcoder2ForCausalLM"
    tokens = torch.arange(16).reshape(1, -1)
    ours = load_model(*open_run(house.here / "run", step=None), torch.device("cpu"))
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, ours(tokens), atol=1e-5, rtol=1e-5)


def test_added_semantics_and_policies_plan_batches_and_nodes(house):
    def stages(*words: str) -> list[tuple[int, int]]:
        tiny = [f"{key}={value}" for key, value in (TINY | {"trainer.num_nodes": "4"}).items()]
        plan = json.loads(
            house.rampcli("plan", "--factory", "llama3_tiny", *tiny, *words, "--json")
        )
        return [(stage["global_batch_size"], stage["num_nodes"]) for stage in plan["stages"]]

    assert stages("rampup.semantics=jump", "rampup.node_policy=one") == [(2, 1), (8, 1)]
    assert len(stages("rampup.semantics=megatron")) == 4


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ("plan --factory toy_recipe", "toy_recipe"),
        ("recipes", "toy_recipe"),
        ("ramps", "toy_ramp"),
        ("toy one two three", "3"),
        ("explain --factory llama3_tiny seed seed=${negate:-77}", "77"),
        ("explain --factory llama3_tiny average.toys", "How many toys."),
        ("explain --factory llama3_tiny data.task", "least"),
    ],
)
def test_commands_show_an_addition(house, words, printed):
    assert printed in house.rampcli(*words.split())


def test_an_added_check_refuses(house):
    assert "13 layers bring bad luck" in house.refused(
        "plan", "--factory", "toy_recipe", "model.num_layers=13"
    )


def test_an_added_task_is_answered():
    prompt, answer = pose("least", digits=3, seed=1, index=0, attempt=0)
    assert answer == min(prompt.rstrip("=").split("+"))


def test_a_tracker_is_a_module_and_one_entry(house):
    words = [*SHORT, "logging.trackers=[toy]", "run_dir=run"]
    assert "`toy`" in house.rampcli("explain", "--factory", "llama3_tiny", "logging.trackers")
    assert "toy" in house.refused("plan", *SHORT, "logging.trackers=[tow]")
    house.rampcli("pretrain", *words)
    name, *lines = (house.here / "run/trackers/toy.txt").read_text().splitlines()
    assert name == "llama3_tiny"
    trained = [line.split() for line in lines if not line.endswith("None")]
    assert trained == [[str(row["step"]), str(row["loss"])] for row in rows_of(house)]


def do_job(house, script):
    """Runs a script as the toy's shelf does."""
    subprocess.run(["bash", house.here / script], cwd=house.here, env=environment(), check=True)


def state_of(house, run="run"):
    return json.loads(house.rampcli("status", run, "--json"))


def test_a_launcher_is_a_folder_and_one_entry(house):
    words = [*SHORT, "launch=toy", "run_dir=run"]
    explained = house.rampcli("explain", "--factory", "llama3_tiny", "launch.launcher")
    assert "`toy`: nowhere by itself." in explained
    assert "Shelf on which jobs wait." in house.rampcli("explain", "launch.toy.shelf")
    assert "launch.toy.shelf" in house.refused("plan", *words, "launch.toy.shelf=cellar")
    assert "needs launch=local" in house.refused("plan", *words, "launch.elastic=true")
    assert "rampcli.launch.toy.job" in house.rampcli("pretrain", *words, "--dry-run")
    assert "the shelf is there" in house.rampcli("doctor", *words)

    house.rampcli("pretrain", *words)
    assert "has jobs in the queue: 1" in house.refused("pretrain", *words)
    waiting = state_of(house)
    assert (waiting["state"], waiting["jobs"][0]["state"]) == ("waiting", "SHELVED")
    assert "asked" not in house.rampcli("cancel", "run")
    assert state_of(house)["jobs"][0]["state"] is None

    house.rampcli("pretrain", *words)
    do_job(house, "run/toy/train.sh")
    assert state_of(house)["state"] == "complete"
    assert rows_of(house)[-1]["consumed_samples"] == 24
    house.rampcli("report", "run")


def test_a_launcher_that_submits_jobs_runs_searches_and_sweeps(house):
    one = ["model.global_batch_size=1", "data.micro_batch_size=1", "launch=toy"]
    words = [word for word in SHORT if not word.startswith(("model.global", "data.micro"))]
    words += one
    search = ["tune", *words, "run_dir=run", "--steps", "5"]
    house.rampcli(*search)
    do_job(house, "run/tune/toy/search.sh")
    found = json.loads(house.rampcli(*search, "--json", "launch.toy.shelf=lower"))
    assert found["recommended"] == 1

    sweep = [*words, "optim.weight_decay=0.1,0.2", "name=swept"]
    house.rampcli("sweep", *sweep)
    assert len([*(house.here / "runs").glob("**/toy/train.sh")]) == 2
    assert house.rampcli("sweep", *sweep).count("has jobs in the queue") == 2
