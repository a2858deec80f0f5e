from functools import partial

import pytest

from built_corpora import TEXTS, write_lines
from rampcli.data.building import build as building
from rampcli.data.building.options import BuildOptions
from rampcli.data.building.records import Reader


@pytest.fixture
def options(tmp_path):
    source = write_lines(tmp_path / "in" / "a.jsonl", TEXTS)
    (tmp_path / "in" / "b.txt").write_text("a text of its own\n" * 3)
    return BuildOptions(
        inputs=(source.parent,), output=tmp_path / "out" / "corpus", tokenizer="bytes", workers=1
    )


@pytest.fixture
def in_small_chunks(monkeypatch):
    """Makes each document a chunk of its own."""
    monkeypatch.setattr(building, "Reader", partial(Reader, chunk_bytes=16))
