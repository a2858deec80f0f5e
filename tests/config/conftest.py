import copy
from pathlib import Path

import pytest

from rampcli import llm


@pytest.fixture(scope="session")
def composed():
    """A recipe's configuration, shared by all tests; they must not change it."""
    return llm.gpt3_5b.pretrain_recipe()


@pytest.fixture
def recipe(composed):
    """A recipe's configuration that a test may change."""
    return copy.deepcopy(composed)


@pytest.fixture(scope="session")
def line_of():
    """Returns the number of the line in a file of this repository that consists of a text."""

    def number(file: str, text: str) -> int:
        lines = (Path(__file__).parents[2] / file).read_text(encoding="utf-8").splitlines()
        return 1 + next(index for index, line in enumerate(lines) if line.strip() == text)

    return number


@pytest.fixture(scope="session")
def gpt3_5b_place(line_of):
    """The place of values set by the recipe gpt3_5b: the line of its call of `compose`."""
    first_line = line_of("recipes/gpt3.py", '"name=gpt3_5b",')
    return f"recipes/gpt3.py:{first_line - 1}"


@pytest.fixture
def option(tmp_path):
    """Writes an option file and returns the folder for `config_dir`."""

    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return tmp_path

    return write
