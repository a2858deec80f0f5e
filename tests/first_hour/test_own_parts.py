"""Parts of one's own: the example package, and a recipe file that registers an optimiser."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "rampcli-extras"
SHORT = (
    "data.sequence_length=32",
    "data.micro_batch_size=2",
    "model.global_batch_size=4",
    "model.rampup_batch_size=null",
    "trainer.num_nodes=1",
    "trainer.val_samples=4",
    "optim.warmup_samples=4",
)
PARTS = (
    "optim.optimizer=lion",
    "optim.lion.beta1=0.95",
    "schedule.decay_style=power",
    "schedule.power.exponent=0.7",
    "model.family=parallel",
    "data.source=counting",
    "data.counting.documents=50",
    "logging.trackers=[csv]",
    "logging.observers=[layer_norms]",
    "logging.layer_norms.every_steps=2",
)
OWN = """
from dataclasses import dataclass

from rampcli import Config, compose
from rampcli.extend import model, optimizer, setting


@dataclass(kw_only=True)
class Plain:
    factor: float = setting(1.0, "Factor of each step.", above=0)


@optimizer("plain", settings=Plain)
def plain(parameters, optim, settings):
    import torch

    return torch.optim.SGD(parameters.values(), lr=optim.lr * settings.factor)


@dataclass(kw_only=True)
class Wide:
    width: int = setting(3, "Width.", at_least=1)


@model("wide", settings=Wide)
def wide(shape, *, sequence_length, layers, settings):
    from rampcli.models.decoder import Decoder

    return Decoder(shape, sequence_length=sequence_length, layers=layers)


def small(num_nodes: int = 1) -> Config:
    return compose(
        "name=small", "model=llama3_tiny", "data=stdlib", "optim=llama3_tiny",
        "optim.optimizer=plain", "optim.plain.factor=2", f"trainer.num_nodes={num_nodes}",
    )
"""


@pytest.fixture(scope="session")
def extras(tmp_path_factory):
    """Returns a folder that the example package is installed in."""
    folder = tmp_path_factory.mktemp("extras")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--target")
    subprocess.run([*pip, *options, folder, EXAMPLE], check=True, capture_output=True)
    return {"PYTHONPATH": str(folder)}


def test_a_run_of_the_example_package_resumes_and_gives_text(newcomer, extras):
    words = ("pretrain", "--factory", "llama3_tiny", "name=own", *SHORT, *PARTS)
    newcomer.succeed(*words, "trainer.max_samples=16", **extras)
    folder = newcomer.folder / "runs" / "own"
    config = (folder / "config.yaml").read_text()
    assert "    beta1: 0.95\n    beta2: 0.99\n" in config  # defaults are settings, too
    newcomer.succeed(*words, "trainer.max_samples=24", **extras)
    rows = (folder / "trackers" / "csv" / "metrics.csv").read_text().splitlines()
    losses = [row.split(",") for row in rows if ",train/loss," in row]
    assert [int(step) for step, _, _ in losses] == [1, 2, 3, 4, 5, 6]  # it has resumed
    assert float(losses[-1][2]) < float(losses[0][2])
    # An observer of the package has measured every second step, and everything shows its metrics.
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    norms = [json.loads(line).get("grad_norm_0") for line in lines]
    assert [norm is None for norm in norms] == [True, False] * 3
    tagged = [row.split(",") for row in rows if ",layers/grad_norm_0," in row]
    assert [float(value) for _, _, value in tagged] == norms[1::2]
    report = json.loads(newcomer.succeed("report", "runs/own", "--json"))["runs"][0]
    assert report["metrics"]["grad_norm_0"] == pytest.approx(sum(norms[1::2]) / 3)
    assert "grad_norm_0" in newcomer.succeed("report", "runs/own")
    assert newcomer.succeed(
        "generate", "runs/own", "--prompt", "1 2", "--max-tokens", "4", **extras
    )
    # Another architecture cannot read these weights.
    words = [word for word in words if not word.startswith("model.family")]
    other = newcomer.start(*words, "trainer.max_samples=32", **extras)
    assert (other.returncode, "model.family" in other.stderr) == (4, True)
    # Transformers has no class for it. Without the package, the run can still be looked at.
    assert "no class" in newcomer.refused("export", "runs/own", "out", **extras)
    assert "complete" in newcomer.succeed("status", "runs/own")
    assert "no extension" in newcomer.refused("plan", "--factory", "runs/own/config.yaml")


def test_settings_of_an_extension_are_typed_checked_and_explained_like_ours(newcomer, extras):
    plan = ("plan", "--factory", "llama3_tiny")
    for words, message in {
        ("optim.optimizer=lion", "optim.lion.beta1=much"): "optim.lion.beta1=much is not a number",
        ("optim.optimizer=lion", "optim.lion.beta1=2"): "optim.lion.beta1=2.0 is not below 1",
        ("optim.optimizer=lion", "optim.lion.beta=0.9"): "optim.lion.beta1",
        ("optim.lion.beta1=0.9",): "optim.lion.beta1 does not apply to optim.optimizer=muon",
        ("optim.optimizer=lino",): "optim.optimizer=lion",
        ("rl.reward=shortr",): "rl.reward",
        ("data.source=counting", "data.counting.documents=3"): "documents=3 is below 10",
        ("logging.observers=[layer_norms,layer_norms]",): "names an observer twice",
        ("logging.layer_norms.every_steps=2",): "'logging.observers=[layer_norms]'",
    }.items():
        assert message in newcomer.refused(*plan, *words, **extras), words
    words = ("explain", "optim.optimizer=lion", "optim.lion.beta1", "--json")
    (explained,) = json.loads(newcomer.succeed(*words, **extras))
    assert explained["doc"] == "Share of the momentum in the direction of a step."
    assert (explained["value"], explained["range"]) == (0.9, "from 0 below 1")


def test_a_reward_of_a_package_scores_responses(newcomer, extras):
    words = ("rl", "--factory", "sort_digits", "rl.reward=shorter", "trainer.max_samples=64")
    words += ("logging.observers=[layer_norms]",)
    newcomer.succeed(*words, "trainer.val_samples=0", **extras)
    lines = (newcomer.folder / "runs" / "sort_digits_rl" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert all(row["reward"] <= 0 for row in rows)
    for row in rows:  # the sums of a policy's gradient are divided by its pairs or tokens
        of_layers = [value for name, value in row.items() if name.startswith("grad_norm_")]
        assert 0.5 * row["grad_norm"] < math.hypot(*of_layers) <= row["grad_norm"]


def test_a_recipe_file_registers_parts_for_its_workers(newcomer):
    (newcomer.folder / "own.py").write_text(OWN)
    newcomer.succeed("pretrain", "--factory", "own.py", *SHORT, "trainer.max_samples=8")
    # Another process knows them from the environment only: a run directory cannot name code.
    again = ("plan", "--factory", "runs/small/config.yaml")
    assert "RAMPCLI_EXTENSIONS=FILE.py" in newcomer.refused(*again)
    newcomer.succeed(*again, RAMPCLI_EXTENSIONS="own.py")
    # Another architecture, also one with settings that the checkpoint does not have, is refused.
    words = ("pretrain", "--factory", "own.py", *SHORT, "trainer.max_samples=12")
    other = newcomer.start(*words, "model.family=wide")
    assert (other.returncode, "model.family=decoder (here wide)" in other.stderr) == (4, True)
