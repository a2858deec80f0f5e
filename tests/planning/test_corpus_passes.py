import json

import pytest

from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.launch.files import read_files
from rampcli.planning.corpus_passes import MOST_PASSES, corpus_passes, describe_passes, pass_notes
from rampcli.planning.resolve import resolve


def planned(*words):
    config = apply_overrides(
        llm.from_factory("llama3_tiny"), ["model.rampup_batch_size=null", *words]
    )
    return resolve(config, read_files=read_files)


@pytest.fixture
def blend(tmp_path):
    """Words for a blend of two texts, of which the smaller one has a third of the samples."""
    for name, size in (("small", 1300), ("large", 130_000)):
        (tmp_path / name).write_bytes(b"x" * size)
    return ["data=text", f"data.blend=[1,{tmp_path}/small,2,{tmp_path}/large]"]


def test_a_plan_tells_how_often_each_corpus_is_read_and_how_to_read_it_less(blend):
    resolved = planned(*blend, "trainer.max_samples=1600", "trainer.val_samples=0")
    small, large = corpus_passes(resolved)
    assert small.passes * small.facts.samples == pytest.approx(533)  # a third, in whole samples
    assert large.passes * large.facts.samples == pytest.approx(1067)
    (note,) = pass_notes(resolved)
    assert note in resolved.notes
    assert f"is read {small.passes:.1f} times" in note
    (word,) = [word.strip(";") for word in note.split() if word.startswith("trainer.max_samples=")]
    shorter = planned(*blend, word, "trainer.val_samples=0")
    assert pass_notes(shorter) == []
    assert max(one.passes for one in corpus_passes(shorter)) == pytest.approx(MOST_PASSES, rel=0.3)


def test_a_corpus_that_is_too_small_for_one_step_gets_no_shorter_run(tmp_path):
    (tmp_path / "a.txt").write_text("x" * 200)
    resolved = planned("data=text", f"data.path={tmp_path}/a.txt", "trainer.val_samples=0")
    assert pass_notes(resolved) == [f"the 1 sample of {tmp_path}/a.txt is read 3216.0 times"]
    (line,) = describe_passes(resolved)
    assert line.endswith(": 1 sample, each 3216.00 times")


def test_pairs_are_counted_beside_the_samples_that_they_are_packed_into(tmp_path):
    rows = [json.dumps({"prompt": f"{number}?", "response": "yes"}) for number in range(50)]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    words = ("data=pairs", f"data.path={tmp_path}/a.jsonl", "data.split=[1,0,0]")
    resolved = planned(*words, "trainer.val_samples=0", "trainer.max_samples=32")
    (one,) = corpus_passes(resolved)
    assert (one.facts.pairs, one.passes) == (50, 32 / one.facts.samples)
    (line,) = describe_passes(resolved)
    assert f"{one.facts.samples} samples of 50 pairs, each {one.passes:.2f} times" in line
