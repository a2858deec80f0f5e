"""A text of one's own: its characters, its first mistakes, and the corpus that a build makes of it.

The tutorial "A text of your own" trains on such a corpus.
"""

import hashlib
import json
import shlex

import pytest

TEXT = "".join(map(chr, range(200, 303))) * 200
"""A text of 103 characters."""
SHORT = ("model.rampup_batch_size=null", "optim.warmup_samples=4")
LETTERS = ("--factory", "shakespeare_char", "data.path=mine.txt", *SHORT)


@pytest.fixture
def with_text(newcomer):
    (newcomer.folder / "mine.txt").write_text(TEXT, encoding="utf-8")
    return newcomer


def contents(folder):
    return {
        path.relative_to(folder): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_text_with_other_characters_trains_resumes_and_keeps_other_texts_out(with_text):
    newcomer, runs = with_text, with_text.folder / "runs"
    for words in (("plan", *LETTERS), ("pretrain", *LETTERS, "--dry-run")):
        printed = newcomer.succeed(*words)
        assert "note: vocabulary: 103 tokens\n" in printed
        assert "note: validation: 32 of 1,742 samples" in printed
    refused = newcomer.refused("pretrain", *LETTERS, "model.vocab_size=65")
    assert "try:    model.vocab_size=103 or null" in refused
    assert not runs.exists()

    for max_samples in (24, 48):
        printed = newcomer.succeed("pretrain", *LETTERS, f"trainer.max_samples={max_samples}")
    assert "after 0 samples" not in printed  # it has resumed
    assert "after 48 samples" in printed
    config = (runs / "shakespeare_char" / "config.yaml").read_text()
    assert "  vocab_size: 103\n" in config
    assert "  val_samples: 32\n" in config

    before = contents(runs)
    (newcomer.folder / "mine.txt").write_text(TEXT[::-1], encoding="utf-8")
    other = newcomer.start("pretrain", *LETTERS, "trainer.max_samples=72")
    assert (other.returncode, "another corpus" in other.stderr) == (4, True)
    assert contents(runs) == before


def test_the_command_that_a_build_prints_is_accepted_as_printed(newcomer):
    rows = (json.dumps({"text": f"Page {page}. " + "Rain, wind. " * 900}) for page in range(100))
    (newcomer.folder / "pages.jsonl").write_text("\n".join(rows))
    built = newcomer.succeed("data", "build", "pages.jsonl", "-o", "d", "--tokenizer", "chars")
    program, *words = shlex.split(built.splitlines()[-1])
    assert program == "rampcli"
    planned = newcomer.succeed(*words, "--dry-run")
    assert "note: validation: 84 of 256 samples" in planned
    assert "run directory runs/d\n" in planned


@pytest.mark.parametrize(
    ("name", "content", "remedy"),
    [
        ("empty.txt", b"", "a file or folder with text"),
        ("line.txt", b"Hello.\n", "data.sequence_length="),
        ("windows.txt", "Käse\r\n".encode("cp1252"), "iconv -f CP1252"),
        ("rows.jsonl", b'{"text": "Rain."}\n', "rampcli data build rows.jsonl"),
    ],
)
def test_a_text_that_cannot_be_trained_on_gets_one_message_with_a_remedy(
    name, content, remedy, newcomer
):
    (newcomer.folder / name).write_bytes(content)
    path = f"data.path={name}"
    refused = newcomer.refused("pretrain", "--factory", "shakespeare_char", path)
    assert refused.count("error: ") == 1
    assert remedy in refused
    assert [entry.name for entry in newcomer.folder.iterdir()] == [name]
