from pathlib import Path

import pytest

from hostile.materials import make_materials
from once import make_once


@pytest.fixture(scope="session")
def materials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an intact corpus, run and export."""
    return make_once(tmp_path_factory, "materials", make_materials)
