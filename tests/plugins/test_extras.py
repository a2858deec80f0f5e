import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from error_text import as_text
from rampcli.errors import UsageError
from rampcli.plugins.extras import EXTRAS, requiring

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
COMMANDS = {
    "huggingface_hub": ["import", "gpt2", "conf/model/gpt2.yaml"],
    "matplotlib": ["plan", "-f", "llama3_tiny", "--plot", "plan.svg"],
    "pyarrow": ["data", "build", "texts.parquet", "-o", "corpus", "--tokenizer", "bytes", "--json"],
    **{
        name: ["pretrain", "-f", "llama3_tiny", f"logging.trackers=[{name}]"]
        for name in ("tensorboard", "wandb")
    },
    "zstandard": [
        "data",
        "build",
        "texts.jsonl.zst",
        "-o",
        "corpus",
        "--tokenizer",
        "bytes",
        "--json",
    ],
}
HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""


@pytest.fixture
def without(tmp_path):
    """Runs a command in an empty folder, in processes that cannot import some packages."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "work").mkdir()

    def run(packages, words):
        (tmp_path / "hidden" / "sitecustomize.py").write_text(HIDE.format(packages=packages))
        return subprocess.run(
            [sys.executable, "-m", "rampcli", *words],
            cwd=tmp_path / "work",
            env={**os.environ, "PYTHONPATH": str(tmp_path / "hidden")},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.parametrize("package", EXTRAS)
def test_a_missing_package_gives_one_message_with_its_pip_command(package, without, tmp_path):
    for name in ("texts.parquet", "texts.jsonl.zst"):
        (tmp_path / "work" / name).write_bytes(b"PAR1")
    done = without([package], COMMANDS[package])
    assert (done.returncode, done.stdout) == (2, "")
    error, remedy = as_text(done.stderr).splitlines()
    assert error.startswith("error: ")
    assert f"needs the package {package}" in error
    assert remedy == f"       try:    pip install 'rampcli[{EXTRAS[package]}]'"
    left = sorted(path.name for path in (tmp_path / "work").iterdir())
    assert left == ["texts.jsonl.zst", "texts.parquet"]


def test_plans_and_corpora_of_plain_text_need_no_optional_package(without, tmp_path):
    (tmp_path / "work" / "texts.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    for words in (
        ["plan", "-f", "llama3_tiny"],
        ["pretrain", "-f", "llama3_tiny", "logging.trackers=[tensorboard,wandb]", "--dry-run"],
        ["data", "build", "texts.jsonl", "-o", "corpus", "--tokenizer", "bytes", "--json"],
    ):
        done = without(list(EXTRAS), words)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_package_with_a_missing_dependency_is_not_reported_as_missing():
    with pytest.raises(ModuleNotFoundError, match="other"), requiring("pyarrow", purpose="this"):
        raise ModuleNotFoundError("No module named 'other'", name="other")


def test_a_package_that_cannot_be_loaded_says_why():
    with (
        pytest.raises(UsageError, match="this needs the package pyarrow: libarrow is broken"),
        requiring("pyarrow", purpose="this"),
    ):
        raise ImportError("libarrow is broken", name="pyarrow.lib")


def test_each_optional_package_has_its_extra_and_development_installs_all_of_them():
    extras = PROJECT["optional-dependencies"]
    for package, extra in EXTRAS.items():
        assert [entry.partition(">")[0] for entry in extras[extra]] == [package]
        assert not any(entry.startswith(package) for entry in PROJECT["dependencies"])
    assert f"rampcli[{','.join(sorted(EXTRAS.values()))}]" in extras["dev"]
