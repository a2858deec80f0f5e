from pathlib import Path

import pytest

from hostile.materials import make_materials


@pytest.fixture(scope="session")
def materials(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The folder of an honest corpus, run and export, which the processes of a session share."""
    base = tmp_path_factory.getbasetemp()
    return make_materials((base if worker_id == "master" else base.parent) / "materials")
