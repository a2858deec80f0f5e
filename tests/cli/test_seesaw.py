"""`rampcli plan --seesaw`."""

import json
import re
import shlex
import xml.etree.ElementTree as ElementTree

import pytest

from rampcli.cli.base import Base
from rampcli.cli.composing import compose_words
from rampcli.cli.seesaw import seesaw
from recorded_runs import write_run

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


PHASES = ("phases.main.until=10M", "phases.anneal.until=12M", "phases.last.until=13M")
TINY = ("llama3_tiny", "model.rampup_batch_size=null", *PHASES)
RUNS = {
    "one schedule over all phases": TINY,
    "a decay of its own": (
        *TINY,
        "schedule.decay_style=constant",
        *("phases.anneal.schedule.decay_style=linear", "phases.last.schedule.begin=continue"),
    ),
    "rates of their own": (*TINY, "phases.anneal.optim.lr=1e-3", "phases.last.optim.lr=5e-4"),
    "a warm-up of its own": (
        *TINY,
        "phases.anneal.optim.lr=1e-3",
        "phases.anneal.optim.warmup_steps=20",
    ),
    "a warm-up over several phases": (*TINY, "optim.warmup_samples=85K"),
    "a batch of its own": (*TINY, "phases.anneal.model.global_batch_size=24"),
    "longer samples": (*TINY, "phases.anneal.data.sequence_length=256"),
    "ends in steps": (
        *("llama3_tiny", "model.rampup_batch_size=null", "phases.main.until=steps:5000"),
        *("phases.anneal.until=steps:6000", "phases.last.until=13M", "trainer.max_steps=6100"),
    ),
    "a ramp in the first phase": ("llama3_tiny", *PHASES),
}


@pytest.mark.parametrize(
    "words",
    [
        ("llama3_8b", *QUARTER_COSINE),
        ("gpt3_5b", "model.rampup_batch_size=null"),
        *RUNS.values(),
        ("llama3_tiny", "model.rampup_batch_size=null", "data.global_batch_size=32"),
        ("llama3_tiny", "enable_rampup_batch_size=false", "per_device_batch_size=4"),
        (*TINY, "phases.anneal.data.global_batch_size=24", "training.model.micro_batch_size=2"),
    ],
    ids=" ".join,
)
def test_pasted_words_of_seesaw_give_the_same_stages(succeed, stages, words):
    recipe, *rest = words
    printed = succeed("plan", "-f", recipe, "--seesaw", *rest)
    line = printed.splitlines()[printed.splitlines().index("train it with:") + 1]
    assert stages("-f", recipe, *shlex.split(line)) == stages("-f", recipe, "--seesaw", *rest)


def test_pasted_words_of_seesaw_hold_what_retune_has_adapted(succeed):
    run = ("plan", "-f", "llama3_8b", "model.global_batch_size=1024")
    printed = succeed(*run, "--retune", "--seesaw").splitlines()
    words = shlex.split(printed[printed.index("train it with:") + 1])
    assert {"optim.lr=0.0004243", "optim.beta2=0.9025"} <= {*words}
    pasted = json.loads(succeed(*run[:3], *words, "--json"))
    grown = json.loads(succeed(*run, "--retune", "--seesaw", "--json"))
    assert pasted["stages"] == grown["stages"]


def test_words_of_seesaw_hold_what_retune_has_adapted_beside_measured_throughput(succeed, tmp_path):
    run = write_run(tmp_path / "run")
    words = ("model.rampup_batch_size=null", "model.global_batch_size=32", "--retune", "--seesaw")
    printed = succeed("plan", "-f", "llama3_tiny", *words, "--measured", str(run.path)).splitlines()
    assert "optim.beta2=0.9025" in shlex.split(printed[printed.index("train it with:") + 1])


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


@pytest.mark.parametrize("words", RUNS.values(), ids=RUNS)
def test_each_phase_keeps_its_samples_and_the_rate_that_its_batch_stands_for(words):
    recipe, *rest = words
    before = compose_words(Base(factory=recipe), rest)
    after, _ = seesaw(before, 2.0)
    for one, grown in zip(before.phases, after.phases, strict=True):
        largest = grown.plan.extents[-1].global_batch_size
        assert one.plan.end.samples == pytest.approx(grown.plan.end.samples, abs=3 * largest)
        stays = any(note.startswith(f"phase {one.name} stays as it is") for note in after.notes)
        batch = one.plan.extents[0].global_batch_size
        for stage in grown.plan.extents:
            size = stage.global_batch_size
            end = stage.first_sample + size
            rate = grown.rate.at(end, global_batch_size=size)
            end_before = one.plan.first.samples + end - grown.plan.first.samples
            plain = one.rate.at(end_before, global_batch_size=batch)
            if stays or grown.rate.is_warming_up(end):
                assert rate == pytest.approx(plain, rel=0.02)
            else:  # with a step of the paper, the batch stands for up to twice the rate
                assert 0.95 <= rate * (batch / size) ** 0.5 / plain <= 2.1


def test_the_batch_grows_on_from_phase_to_phase_with_one_schedule(stages):
    sizes = [one["global_batch_size"] for one in stages("-f", *TINY, "--seesaw")]
    assert sizes == sorted(sizes)
    assert len({*sizes}) > 5


def test_phases_that_cannot_grow_stay_and_a_note_says_why(succeed, stages):
    words = ("-f", "llama3_tiny", *PHASES, "phases.last.schedule.lr_factors=[1]")
    data = json.loads(succeed("plan", *words, "--seesaw", "--json"))
    before = stages(*words)
    assert [row for row in data["stages"] if row["phase"] == "main"] == before[:4]
    notes = [note for note in data["notes"] if "stays as it is" in note]
    assert notes == [
        "phase main stays as it is: --seesaw derives the batch sizes, but this phase already has a"
        " batch schedule",
        "phase last stays as it is: --seesaw derives the stages, so schedule.lr_factors cannot list"
        " their factors",
    ]
