"""The places that CONTRIBUTING.md names for an addition are enough.

A copy of the package gets an addition of each kind, by edits of exactly these places. Then the laws
of the tests hold for the additions, and commands plan, train, report and export with them.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.test_contributing import ROOT, rows

TOYS = ROOT / "tests/toys"
ADDITIONS = {
    "an activation function": {
        "rampcli/settings/model_parts.py:ACTIVATIONS": {
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
        "rampcli/settings/model.py:ModelConfig": {
            "    tie_embeddings: Keyed[bool] =": """
    has_out_norm: Keyed[bool] = setting(False, "Normalise outputs.", whole_run(TENSORS))
    tie_embeddings: Keyed[bool] ="""
        },
    },
    "an optimiser": {
        "rampcli/settings/optimizers.py:OPTIMIZERS": {
            "OPTIMIZERS = {\n": """OPTIMIZERS = {
    "sgd": Optimizer(
        builder="rampcli.train.optimizers:build_sgd",
        settings=("sgd_momentum",),
        states=1,
        matrix_states=1,
    ),
"""
        },
        "rampcli/train/optimizers.py": {
            "import AdamW\n": "import SGD, AdamW\n",
            "def _adamw(": """def build_sgd(parts, optim):
    weights = [weight for part in parts for weight in part.parameters()]
    return [SGD(weights, lr=optim.lr, momentum=optim.sgd_momentum)]


def _adamw(""",
        },
        "rampcli/settings/optim.py:OptimConfig": {
            "    muon_momentum: Keyed[float] =": """
    sgd_momentum: Keyed[float] = setting(0.9, "Momentum of SGD.", any_phase(LEARNING))
    muon_momentum: Keyed[float] ="""
        },
    },
    "a decay style of the learning rate": {
        "rampcli/schedule/learning_rate.py:DECAY_STYLES": {
            "DECAY_STYLES: dict[str, DecayStyle] = {\n": """DECAY_STYLES: dict[str, DecayStyle] = {
    "parabola": DecayStyle("a parabola", _until_the_end(lambda share: 1 - share**2)),
"""
        }
    },
}
"""Edits of each place, as texts and what replaces them."""
TOY_PARTS = {
    "a tracker": (
        'TrackerClass(name="rampcli.tracking.toy:Toy")',
        {"rampcli/tracking/toy.py": TOYS / "tracker.py"},
    ),
    "a launcher": (
        '"rampcli.launch.toy"',
        {
            "conf/launch/toy.yaml": TOYS / "launcher.yaml",
            **{f"rampcli/launch/toy/{file.name}": file for file in TOYS.glob("launcher/*.py")},
        },
    ),
}
"""The entry of each part in the table that its row names, and its files in the row's folders."""


def copy_of_the_package(folder: Path) -> None:
    """Copies the package into a folder, with all additions."""
    for name in ("rampcli", "recipes", "conf"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)
    for places in ADDITIONS.values():
        for place, changes in places.items():
            path = folder / place.partition(":")[0]
            text = path.read_text()
            for before, after in changes.items():
                assert text.count(before) == 1, before
                text = text.replace(before, after)
            path.write_text(text)
    for row, (entry, files) in TOY_PARTS.items():
        named = [place.partition(":") for place in rows()[row]]
        for place, source in files.items():
            assert any(Path(parent) in Path(place).parents for parent, _, _ in named), place
            (folder / place).parent.mkdir(exist_ok=True)
            shutil.copy(source, folder / place)
        ((file, table),) = [(file, what) for file, _, what in named if what.isupper()]
        with (folder / file).open("a") as text:
            text.write(f"\n\n{table}['toy'] = {entry}\n")


@pytest.mark.parametrize("row", ADDITIONS)
def test_an_addition_edits_exactly_the_places_that_contributing_names(row):
    assert list(ADDITIONS[row]) == rows()[row]


def test_additions_obey_the_laws_of_what_is_there_and_commands_work_with_them(tmp_path):
    """One process runs all the laws with the copy, so that it loads torch once."""
    copy_of_the_package(tmp_path)
    variables = {name: text for name, text in os.environ.items() if "PYTEST" not in name}
    laws = [TOYS / "laws.py", ROOT / "tests/estimate/test_model_size.py"]
    selected = "laws or (counted_bytes and small_gpt and sgd)"
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "-rp"),
            *("--basetemp", tmp_path / "runs", "-k", selected, *laws),
        ],
        env=variables | {"PYTHONPATH": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "counted_bytes[small_gpt-sgd]" in done.stdout
