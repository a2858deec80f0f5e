"""`rampcli plan --seesaw`."""

import json
import re
import shlex
import xml.etree.ElementTree as ElementTree

import pytest

QUARTER_COSINE = ("schedule.decay_style=quarter_cosine", "optim.min_lr=0", "optim.warmup_steps=0")


@pytest.mark.parametrize(("factor", "saved"), [("2", 22.0), ("1.5", 27.1), ("1.1", 33.8)])
def test_seesaw_on_a_quarter_cosine_saves_the_steps_that_the_paper_reports(succeed, factor, saved):
    printed = succeed(
        "plan", "-f", "llama3_8b", "--seesaw", "--seesaw-factor", factor, *QUARTER_COSINE
    )
    before, after, share, limit = re.search(
        r"([\d,]+) steps become ([\d,]+), ([\d.]+)% fewer; ([\d.]+)% in the limit", printed
    ).groups()
    assert float(share) == pytest.approx(saved, abs=0.1)
    assert float(limit) == pytest.approx(36.3, abs=0.1)
    before, after = (int(count.replace(",", "")) for count in (before, after))
    assert before == 1_168_251
    assert 1 - after / before == pytest.approx(saved / 100, abs=0.001)


@pytest.mark.parametrize(
    "words",
    [("llama3_8b", *QUARTER_COSINE), ("gpt3_5b", "model.rampup_batch_size=null")],
    ids=" ".join,
)
def test_pasted_words_of_seesaw_give_the_same_stages(succeed, stages, words):
    recipe, *rest = words
    printed = succeed("plan", "-f", recipe, "--seesaw", *rest)
    line = printed.splitlines()[printed.splitlines().index("train it with:") + 1]
    assert stages("-f", recipe, *shlex.split(line)) == stages("-f", recipe, "--seesaw", *rest)


@pytest.mark.parametrize(
    "words",
    [
        ["schedule.batch_coupling=linear"],
        ["schedule.decay_style=wsd", "schedule.wsd_decay_samples=2M"],
    ],
)
def test_the_learning_rate_falls_under_seesaw_with_any_schedule(succeed, words):
    fixed = [
        "model.rampup_batch_size=null",
        "trainer.max_steps=null",
        "trainer.max_samples=10M",
        "optim.warmup_steps=0",
    ]
    small = ["model.global_batch_size=64", "data.micro_batch_size=1", "trainer.num_nodes=1"]
    lines = succeed("plan", "-f", "gpt3_5b", *fixed, *small, *words, "--seesaw").splitlines()
    header = lines[0].split("  ")
    assert "last lr" in map(str.strip, header)
    rates = [float(line.split()[-2]) for line in lines[1:] if line[:6].strip().isdigit()]
    assert len(rates) > 2
    assert rates == sorted(rates, reverse=True)


def test_seesaw_reads_as_many_samples_as_before(stages):
    grown = stages("-f", "llama3_8b", "--seesaw", *QUARTER_COSINE)
    (before,) = stages("-f", "llama3_8b", *QUARTER_COSINE)
    end = grown[-1]["first_sample"] + grown[-1]["samples"]
    assert before["samples"] <= end < before["samples"] + grown[-1]["global_batch_size"]
    sizes = [stage["global_batch_size"] for stage in grown]
    assert sizes == [512 * 2**stair for stair in range(len(sizes))]


def test_a_plot_of_seesaw_shows_its_steps_and_does_not_change_the_json(rampcli, tmp_path):
    ended = rampcli(
        "plan", "-f", "llama3_8b", "--seesaw", *QUARTER_COSINE, "--plot", "x.svg", "--json"
    )
    assert ended.exit_code == 0, ended.stderr
    wide_stages = json.loads(ended.stdout)["stages"][:3]
    sizes = {str(stage["global_batch_size"]) for stage in wide_stages}
    assert sizes <= {
        element.text for element in ElementTree.fromstring((tmp_path / "x.svg").read_bytes()).iter()
    }
