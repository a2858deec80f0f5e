import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

from rampcli.report.plots import plot_plan
from report.svg_texts import TEXT, texts

RAMPS = [
    ("gpt3_5b",),
    ("llama3_8b",),
    ("llama3_tiny",),
    ("gpt3_5b", "trainer.max_steps=null"),
    ("llama3_8b", "trainer.max_steps=null"),
    ("gpt3_5b", "trainer.max_steps=1"),
    ("gpt3_5b", "model.step_batch_size_schedule='0:1024 1B:512'"),
]


def drawn(resolved, path, title="a plan"):
    plot_plan(resolved.plan, path, title=title)
    return path.read_bytes()


@pytest.mark.parametrize("words", RAMPS, ids=" ".join)
def test_a_picture_is_xml_with_every_batch_size_and_the_title_as_text(planned, tmp_path, words):
    resolved = planned(*words)
    labels = texts(drawn(resolved, tmp_path / "x.svg"))
    assert {str(stage.global_batch_size) for stage in resolved.plan.stages} | {
        "a plan",
        "nodes",
    } <= set(labels)


def test_batch_sizes_are_labelled_from_left_to_right_and_bottom_up(planned, tmp_path):
    root = ElementTree.fromstring(drawn(planned("gpt3_5b"), tmp_path / "x.svg"))
    places = {
        element.text: (float(element.get("x")), -float(element.get("y")))
        for element in root.iter(TEXT)
        if element.get("x")
    }
    steps = [places[str(size)] for size in range(256, 2049, 256)]
    assert [x for x, _ in steps] == sorted(x for x, _ in steps)
    assert [y for _, y in steps] == sorted(y for _, y in steps)


def test_stages_too_narrow_for_a_label_have_none(planned, tmp_path):
    schedule = "model.step_batch_size_schedule='samples: 0:256 100000:512 200000:768 20000000:2048'"
    labels = texts(
        drawn(planned("gpt3_5b", schedule, "model.rampup_batch_size=null"), tmp_path / "x.svg")
    )
    assert {"768", "2048"} <= {*labels}
    assert not {"256", "512"} & {*labels}


def test_very_many_batch_sizes_are_drawn_without_labels(planned, tmp_path):
    resolved = planned("llama3_8b", "model.rampup_batch_size=[32,32,50M]")
    labels = texts(drawn(resolved, tmp_path / "x.svg"))
    assert [stage.global_batch_size for stage in resolved.plan.stages][:2] == [32, 64]
    assert not {"32", "64"} & set(labels)


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_equal_plans_give_equal_bytes_and_different_plans_different_ones(planned, tmp_path, suffix):
    first, again = (
        drawn(planned("gpt3_5b"), tmp_path / f"{name}{suffix}") for name in ("first", "again")
    )
    assert first == again
    assert drawn(planned("gpt3_5b", "trainer.num_nodes=8"), tmp_path / f"other{suffix}") != first


def test_another_process_gives_the_same_bytes(planned, tmp_path):
    here = drawn(planned("gpt3_5b"), tmp_path / "here.svg", title="gpt3_5b")
    words = ["plan", "-f", "gpt3_5b", "--plot", str(tmp_path / "there.svg")]
    subprocess.run(
        [sys.executable, "-m", "rampcli", *words], cwd=tmp_path, check=True, capture_output=True
    )
    assert (tmp_path / "there.svg").read_bytes() == here


def test_a_png_starts_with_the_png_signature(planned, tmp_path):
    content = drawn(planned("gpt3_5b"), tmp_path / "x.png")
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert content.rstrip().endswith(b"IEND\xaeB`\x82")


def test_a_picture_says_that_the_last_stage_continues_if_it_is_cut(planned, tmp_path):
    cut = "consumed samples; the last stage continues"
    assert cut in texts(drawn(planned("gpt3_5b"), tmp_path / "x.svg"))
    assert cut in texts(drawn(planned("gpt3_5b", "trainer.max_steps=null"), tmp_path / "x.svg"))
    ended = texts(drawn(planned("gpt3_5b", "trainer.max_samples=11M"), tmp_path / "x.svg"))
    assert cut not in ended
    assert "consumed samples" in ended


@pytest.mark.parametrize("title", ["<&>\"'", "a & b", "100%", "a_b^c"])
def test_any_title_is_written_unchanged(planned, tmp_path, title):
    assert title in texts(drawn(planned("llama3_8b"), tmp_path / "x.svg", title=title))
