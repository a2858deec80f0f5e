"""The places that CONTRIBUTING.md names for an addition are enough.

A copy of the package gets an addition of each kind, by edits of exactly these places. Then the laws
of the tests hold for the additions, and commands plan, train, report and export with them.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.test_contributing import ROOT, rows
from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.estimate.model_size import flops_per_token
from rampcli.planning.resolve import resolve
from rampcli.planning.stage_memory import stage_memory
from rampcli.runs.rows import read_rows

ADDITIONS = {
    "an activation function": {
        "rampcli/config/model_parts.py:ACTIVATIONS": {
            "ACTIVATIONS = {\n": """ACTIVATIONS = {
    "geglu": Activation(
        function="torch.nn.functional:gelu", is_gated=True, kept=4, hidden_act="gelu"
    ),
    "relu": Activation(function="torch.nn.functional:relu", is_gated=False, kept=1),
"""
        }
    },
    "a layer of the model": {
        "rampcli/models/parts.py:layer_parts": {
            '        "ffn": FeedForwardPart(model),\n': """
        "ffn": FeedForwardPart(model),
        **({"out_norm": norm_part(model)} if model.has_out_norm else {}),
"""
        },
        "rampcli/models/decoder.py:Block": {
            '"ffn_norm": "sequence"}': '"ffn_norm": "sequence", "out_norm": "sequence"}',
            "        self.ffn = FeedForward(model)\n": """        self.ffn = FeedForward(model)
        self.out_norm = build_norm(model) if model.has_out_norm else nn.Identity()
""",
            "hidden + self.ffn(self.ffn_norm(hidden))": (
                "hidden + self.out_norm(self.ffn(self.ffn_norm(hidden)))"
            ),
        },
        "rampcli/config/schema/model.py:ModelConfig": {
            "    tie_embeddings: bool =": """
    has_out_norm: bool = setting(False, "Normalise outputs.")
    tie_embeddings: bool ="""
        },
    },
    "an optimiser": {
        "rampcli/config/optimizers.py:OPTIMIZERS": {
            "OPTIMIZERS = {\n": """OPTIMIZERS = {
    "sgd": Optimizer(builder="rampcli.train.optimizers:build_sgd", states=1, matrix_states=1),
"""
        },
        "rampcli/train/optimizers.py": {
            "class Muon(": """def build_sgd(parts, optim):
    weights = [weight for part in parts for weight in part.parameters()]
    return [torch.optim.SGD(weights, lr=optim.lr, momentum=optim.sgd_momentum)]


class Muon("""
        },
        "rampcli/config/schema/optim.py:OptimConfig": {
            "    muon_momentum: float =": """
    sgd_momentum: float = setting(0.9, "Momentum of SGD.")
    muon_momentum: float ="""
        },
    },
    "a decay style of the learning rate": {
        "rampcli/schedule/learning_rate.py:DECAY_STYLES": {
            "DECAY_STYLES: dict[str, DecayStyle] = {\n": """DECAY_STYLES: dict[str, DecayStyle] = {
    "parabola": DecayStyle(rate=_until_the_end(lambda share: 1 - share**2)),
"""
        }
    },
}
"""Edits of each place, as texts and what replaces them."""
LAWS = """
import dataclasses, sys
import pytest, torch
from models import test_parts as laws
from rampcli.errors import UsageError
from rampcli.estimate.model_size import count_parameters
from rampcli.models.decoder import Decoder
from rampcli.models.huggingface_config import to_huggingface

laws.MODELS["out_norm"] = dataclasses.replace(laws.MODEL, has_out_norm=True)
for name in ("geglu", "relu", "out_norm"):
    laws.test_the_declared_parameters_are_those_of_the_modules(name)
    laws.test_the_declared_operations_are_those_that_torch_counts(name)
    laws.test_the_declared_memory_is_that_of_the_tensors_kept_for_the_backward_pass(
        name, torch.float32
    )
    parameters = Decoder(laws.MODELS[name], sequence_length=64).parameters()
    counted = count_parameters(laws.MODELS[name], sequence_length=64)
    assert counted == sum(one.numel() for one in parameters)
exported = to_huggingface(laws.MODELS["geglu"], sequence_length=64, dtype="float32")
assert (exported["model_type"], exported["hidden_act"]) == ("llama", "gelu")
for name in ("relu", "out_norm"):
    with pytest.raises(UsageError, match="transformers has no class for this model"):
        to_huggingface(laws.MODELS[name], sequence_length=64, dtype="float32")
sys.exit(pytest.main(["-n", "0", sys.argv[1], "-k", "counted_bytes and small_gpt and sgd"]))
"""
WORDS = (
    "model.activation=geglu",
    "model.has_out_norm=true",
    "optim.optimizer=sgd",
    "schedule.decay_style=parabola",
)
RUN = (
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


@pytest.fixture(scope="module")
def added(tmp_path_factory) -> Path:
    """Returns a folder with the package and all additions."""
    folder = tmp_path_factory.mktemp("added")
    for name in ("rampcli", "recipes", "conf"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for places in ADDITIONS.values():
        for place, changes in places.items():
            path = folder / place.partition(":")[0]
            text = path.read_text()
            for before, after in changes.items():
                assert text.count(before) == 1, before
                text = text.replace(before, after)
            path.write_text(text)
    return folder


def run(added: Path, *words: str, code: int = 0) -> str:
    """Runs Python with the package that has the additions, and returns what it printed."""
    paths = os.pathsep.join([str(added), str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": paths},
        cwd=added,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("row", ADDITIONS)
def test_an_addition_edits_exactly_the_places_that_contributing_names(row):
    assert list(ADDITIONS[row]) == rows()[row]


def test_additions_obey_the_laws_of_what_is_there_already(added):
    run(added, "-c", LAWS, str(ROOT / "tests" / "estimate" / "test_model_size.py"))


def test_additions_plan_train_report_and_are_exported_or_refused(added):
    words = ["--factory", "llama3_tiny", *RUN]
    known = resolve(apply_overrides(llm.llama3_tiny.pretrain_recipe(), RUN))
    (usual,) = known.plan.stages

    def memory_bytes(*more: str) -> int:
        printed = run(added, "-m", "rampcli", "plan", *words, *more, "--json")
        return json.loads(printed)["stages"][0]["memory_bytes"]

    usual_bytes = stage_memory(known, usual).peak_bytes
    assert memory_bytes("model.activation=geglu") == usual_bytes
    assert memory_bytes("model.activation=relu") < usual_bytes
    assert memory_bytes("model.has_out_norm=true") > usual_bytes
    assert memory_bytes("optim.optimizer=sgd") < usual_bytes

    run(added, "-m", "rampcli", "pretrain", *words, *WORDS, "run_dir=run")
    rows_of_run = list(read_rows(added / "run" / "metrics.jsonl"))
    assert rows_of_run[-1]["loss"] < rows_of_run[0]["loss"] - 0.1
    flops = flops_per_token(known.config.model, sequence_length=32)
    for row in rows_of_run:
        assert row["mfu"] * 1e12 == pytest.approx(row["tokens_per_s"] * flops, rel=1e-3)
        assert row["lr"] == pytest.approx(0.1 * (1 - (row["consumed_samples"] / 320) ** 2))

    said = run(added, "-m", "rampcli", "export", "run", "exported", code=2)
    assert "config.json has no key for model.has_out_norm" in said
    assert not (added / "exported").exists()
