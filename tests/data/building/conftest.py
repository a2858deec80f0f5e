import pytest

from built_corpora import TEXTS, write_lines
from rampcli.data.building.options import BuildOptions


@pytest.fixture
def options(tmp_path):
    source = write_lines(tmp_path / "in" / "a.jsonl", TEXTS)
    (tmp_path / "in" / "b.txt").write_text("a text of its own\n" * 3)
    return BuildOptions(
        inputs=(source.parent,), output=tmp_path / "out" / "corpus", tokenizer="bytes", workers=1
    )
