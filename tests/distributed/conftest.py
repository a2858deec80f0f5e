from pathlib import Path

import numpy as np
import pytest

from once import make_once
from rampcli.data.indexed import write_index
from tiny_runs import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run")


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Returns a run on one process that was never stopped."""
    words = ["rampup.at_boundary=continue", "rampup.node_policy=fixed"]
    return Run(
        make_once(tmp_path_factory, "undisturbed", lambda path: Run(path).workers(1, *words))
    )


@pytest.fixture(scope="session")
def short_documents(tmp_path_factory):
    """Returns the prefix of a corpus of 64 tokens. Most samples hold several documents."""
    prefix = tmp_path_factory.mktemp("corpus") / "short"
    numbers = np.random.default_rng(7)
    lengths = numbers.integers(1, 12, size=600)
    prefix.with_suffix(".bin").write_bytes(
        numbers.integers(64, size=lengths.sum()).astype("<u2").tobytes()
    )
    write_index(prefix.with_suffix(".idx"), np.dtype("<u2"), lambda: iter([lengths]))
    return prefix
