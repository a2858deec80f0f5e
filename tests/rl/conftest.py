import re
from collections.abc import Callable
from pathlib import Path

import pytest

from once import make_once
from policy_runs import PolicyRun, weights_to_start_from


@pytest.fixture(scope="session")
def sorter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a run whose model sorts half of all numbers."""
    return weights_to_start_from(tmp_path_factory)


@pytest.fixture
def run(tmp_path: Path, sorter: Path) -> PolicyRun:
    return PolicyRun(tmp_path / "run", sorter)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, sorter: Path) -> Callable[..., PolicyRun]:
    """Returns a complete run of some ranks with some words, which all tests share."""

    def train(ranks: int, *words: str) -> PolicyRun:
        name = re.sub(r"\W+", "_", " ".join(["policy", str(ranks), *words]))
        folder = make_once(
            tmp_path_factory, name, lambda path: PolicyRun(path, sorter).workers(ranks, *words)
        )
        return PolicyRun(folder, sorter)

    return train
