"""Validation on several named corpora: its losses, its bits per byte, and how it is resumed."""

import json
import math
from pathlib import Path

import pytest

from once import make_once
from rampcli.data.tokenizer import train_bpe
from tiny_runs import Run

LENGTH, SAMPLES = 16, 5
TEXTS = {
    "train": "the cat sat on the mat, and the dog sat on the log. " * 30,
    "prose": "a cat and a dog met on a mat; then it rained. " * 12,
    "code": "for x in range(10): print(x * x)\n" * 14,
}
VOCABULARY = 280


@pytest.fixture(scope="session")
def texts(tmp_path_factory) -> Path:
    def write(folder: Path) -> None:
        for name, text in TEXTS.items():
            (folder / f"{name}.txt").write_text(text)
        train_bpe(iter(TEXTS.values()), VOCABULARY).save(str(folder / "tokenizer.json"))

    return make_once(tmp_path_factory, "texts", write)


@pytest.fixture(scope="session")
def words(texts) -> list[str]:
    return [
        "data=text",
        f"data.path={texts / 'train.txt'}",
        f"data.tokenizer={texts / 'tokenizer.json'}",
        f"data.validation={{prose:{texts / 'prose.txt'},code:{texts / 'code.txt'}}}",
        "data.split=[3,1,0]",
        f"data.sequence_length={LENGTH}",
        f"model.vocab_size={VOCABULARY}",
        "model.rampup_batch_size=null",
        "model.global_batch_size=4",
        f"trainer.val_samples={SAMPLES}",
        "trainer.val_every_steps=2",
    ]


@pytest.fixture(scope="session")
def alone(tmp_path_factory, words) -> Run:
    """Returns a run on one rank, which has validated at steps 0, 2 and 4."""

    def train(path: Path) -> None:
        Run(path).workers(1, *words, "trainer.max_samples=16")

    return Run(make_once(tmp_path_factory, "named", train))


def found(run: Run) -> dict[tuple[int, str], dict]:
    """Returns the validations by step and corpus."""
    rows = run.events_of("validation")
    return {(row["step"], row["corpus"]): row for row in rows if "corpus" in row}


def test_each_corpus_has_the_bits_per_byte_of_its_own_text(alone):
    tokenizer = train_bpe(iter(TEXTS.values()), VOCABULARY)
    assert list(found(alone)) == [(step, name) for step in (0, 2, 4) for name in ("prose", "code")]
    for (_, name), row in found(alone).items():
        labels = tokenizer.encode(TEXTS[name]).ids[1 : 1 + SAMPLES * LENGTH]
        text = tokenizer.decode(labels).encode()
        assert row["samples"] == SAMPLES
        assert row["validation_s"] > 0
        assert row["bits_per_byte"] == pytest.approx(
            row["loss"] / math.log(2) * len(labels) / len(text), rel=1e-12
        )
    assert found(alone)[0, "prose"]["loss"] != found(alone)[0, "code"]["loss"]


@pytest.mark.parametrize(
    "mesh",
    [
        ["data.expansion_factor_real_data=2", "data.micro_batch_size=1"],
        ["parallel.pipeline_parallel_size=2"],
    ],
)
def test_validations_are_the_same_on_every_mesh_and_where_one_host_reads_for_another(
    mesh, run, words, alone
):
    run.workers(2, *words, "trainer.max_samples=8", *mesh)
    for place, row in found(run).items():
        for column in ("loss", "bits_per_byte"):
            assert row[column] == pytest.approx(found(alone)[place][column], abs=1e-5)
    assert len(found(run)) == 4


def test_a_validation_that_was_interrupted_between_two_corpora_is_repeated(run, words):
    run.workers(1, *words, "trainer.max_samples=8")
    whole = run.events
    events = [row for row in whole if (row.get("step"), row.get("corpus")) != (2, "code")]
    run.directory.events.write_text("".join(json.dumps(row) + "\n" for row in events))
    run.workers(1, *words, "trainer.max_samples=12")
    assert [(row["step"], row["corpus"]) for row in run.events_of("validation")][3:] == [
        (step, name) for step in (2, 3) for name in ("prose", "code")
    ]


def test_a_resume_may_change_what_is_validated_and_trains_on_the_same_samples(run, words, alone):
    run.workers(1, *words, "data.validation=null", "trainer.max_samples=8")
    assert [row.get("corpus") for row in run.events_of("validation")] == [None] * 2
    run.workers(1, *words, "trainer.max_samples=16")
    assert [row["loss"] for row in run.rows] == [row["loss"] for row in alone.rows]
    assert found(run)[4, "code"]["loss"] == found(alone)[4, "code"]["loss"]
