from pathlib import Path

import pytest


@pytest.fixture
def option(tmp_path):
    """Writes an option file and returns the folder for `config_dir`."""

    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return tmp_path

    return write
