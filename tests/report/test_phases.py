"""Laws of the plan of a run in phases, as it is shown."""

import json

import numpy as np
import pytest

from rampcli.config.compose import apply_overrides
from rampcli.data.order import SampleOrder
from rampcli.launch.files import read_files
from rampcli.llm import llama3_tiny
from rampcli.planning.corpus_passes import corpus_passes, describe_passes, pass_notes
from rampcli.planning.resolve import resolve
from rampcli.report.phases import by_phase
from rampcli.report.plan_json import plan_json
from rampcli.report.plan_notes import all_notes
from rampcli.report.plan_tables import plan_summary, plan_table
from rampcli.report.plots import plot_plan
from report.svg_texts import texts
from report.table_cells import cells

LENGTHS = (64, 128, 256)


def phased(*words):
    return resolve(apply_overrides(llama3_tiny.pretrain_recipe(), words), read_files=read_files)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose phases have three lengths, and which reads `web` in three orders."""
    folder = tmp_path_factory.mktemp("corpora")
    for name, size in (("web", 80_000), ("code", 10_000)):
        (folder / name).write_bytes(b"x" * size)
    return phased(
        *("data=text", f"data.path={folder}/web", "data.split=[1,0,0]", "trainer.val_samples=0"),
        *("phases.warm.until=20_000", "phases.warm.data.sequence_length=64"),
        *("phases.main.until=steps:30", "model.rampup_batch_size=null"),
        *("phases.mix.until=60K", "phases.mix.data.path=null"),
        f"phases.mix.data.blend=[3,{folder}/web,1,{folder}/code]",
        *("phases.long.until=90K", "phases.long.data.sequence_length=256"),
        *("phases.long.optim.lr=1e-4", "phases.long.throughput.samples_per_s_per_gpu=100"),
    )


def test_the_table_of_phases_has_the_sizes_and_the_rate_of_each(run):
    table = cells(plan_table(run, width=200))
    assert table["phase"][:-1] == ["warm", "main", "mix", "long"]
    assert table["length"][:-1] == ["64", "128", "128", "256"]
    for row, stage in enumerate(run.plan.stages):
        size, rate = stage.global_batch_size, run.of(stage).rate
        assert table["last lr"][row] == f"{rate.at(stage.end_sample, global_batch_size=size):.2e}"
        first = rate.at(stage.first_sample + size, global_batch_size=size)
        assert table["first lr"][row] == f"{first:.2e}"
    assert run.plan.of(run.plan.stages[-1]).sequence_length == 256
    assert table["in tokens"][-2] == "4.10K"


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_of_phases_fits_the_terminal_and_keeps_what_differs(run, width):
    table = plan_table(run, width=width, bars=False)
    assert {"phase", "stage", "length", "batch", "in tokens", "nodes", "hours"} <= {*cells(table)}
    assert (
        sum(max(map(len, (name, *texts))) + 2 for name, texts in cells(table).items()) <= width + 2
    )
    assert ("corpora, passes" in cells(table)) == (width == 120)


def test_tokens_of_phases_add_up(run):
    lines = plan_summary(run)
    assert any(f"{run.plan.end_tokens:,} tokens" in line for line in lines)
    assert run.plan.end_tokens == sum(row["tokens"] for row in plan_json(run)["phases"])


def test_hours_without_some_phases_are_a_minimum_and_say_so(run):
    assert cells(plan_table(run, width=200))["hours"][-1].startswith(">=")
    assert any(
        note == "no throughput is known for phases warm, main and mix: the hours are unknown"
        for note in all_notes(run)
    )


def read_by(run, name):
    """Counts how often the phases read each token of a corpus, with the orders of the loader."""
    size = {"web": 80_000, "code": 10_000}[name]
    counts = np.zeros(size, dtype=int)
    for part in run.phases:
        length = part.config.data.sequence_length
        for number, facts in enumerate(part.files.corpora):
            if not facts.name.endswith(name):
                continue
            start = part.reading.corpora[number]
            order = SampleOrder(
                windows=facts.samples, seed=run.config.seed, corpus=start.corpus, phase=start.phase
            )
            blend = sum(one.share for one in part.files.corpora)
            read = round((part.plan.samples) * facts.share / blend)
            for window in order.windows_of(np.arange(start.samples, start.samples + read)):
                counts[window * length : (window + 1) * length] += 1
    return counts


def test_passes_count_over_phases_and_tokens_read_again_are_as_many_as_expected(run):
    web, code = corpus_passes(run)
    assert (len(web.orders), len(code.orders)) == (3, 1)
    for one, name in ((web, "web"), (code, "code")):
        counts = read_by(run, name)
        assert one.passes == pytest.approx(counts.mean(), rel=0.05)
        again = int((counts - 1).clip(min=0).sum())
        assert one.read_again_tokens == pytest.approx(again, rel=0.05, abs=20)
    assert code.read_again_tokens == 0


def test_the_passes_of_a_phase_are_those_of_the_run_up_to_its_end(run):
    web = corpus_passes(run)[0]
    rows = plan_json(run)["phases"]
    so_far = [row["corpora"][0]["passes"] for row in rows]
    assert so_far == sorted(so_far)
    assert so_far[-1] == web.passes
    first = run.phases[0]
    assert so_far[0] == first.plan.samples / first.files.corpora[0].samples
    (line,) = (line for line in describe_passes(run) if "web" in line)
    assert all(f"{passes:.2f} after" in line for passes in so_far)
    assert "about" in line


def test_another_order_is_noted_while_a_part_of_the_corpus_is_never_read(run):
    (note,) = pass_notes(run)
    assert note.startswith("phases main and long cut ")
    assert note in run.notes


def test_the_json_of_phases_has_rates_and_choices_where_they_hold(run):
    data = json.loads(json.dumps(plan_json(run)))
    assert {"sequence_length", "compilation", "gradient_reduction"}.isdisjoint(data)
    for row, phase in zip(data["phases"], run.phases, strict=True):
        assert row["sequence_length"] in LENGTHS
        rate = phase.rate
        last = phase.plan.stages[-1]
        size = last.global_batch_size
        assert row["last_lr"] == rate.at(last.end_sample, global_batch_size=size)
        assert {"compilation", "gradient_reduction", "first_lr"} <= {*row}
    assert {one["orders"] for one in data["corpora"]} == {1, 3}


def test_the_json_of_a_stage_has_its_phase_and_the_length_of_its_samples(run):
    rows = plan_json(run)["stages"]
    assert [row["phase"] for row in rows] == [run.of(stage).name for stage in run.plan.stages]
    assert [row["sequence_length"] for row in rows] == [
        run.plan.of(stage).sequence_length for stage in run.plan.stages
    ]


def test_a_line_about_some_phases_names_them(run):
    def lines(part):
        yield "all"
        if part.config.data.sequence_length == 128:
            yield "some"

    assert [*by_phase(run, lines)] == ["all", "phases main and mix: some"]
    assert [*by_phase(phased("data.sequence_length=64"), lines)] == ["all"]


def test_a_picture_of_different_lengths_counts_tokens_and_names_the_phases(run, tmp_path):
    plot_plan(run.plan, tmp_path / "a.svg", title="run")
    found = set(texts((tmp_path / "a.svg").read_bytes()))
    assert {"warm", "main", "mix", "long", "consumed tokens", "4.10K"} <= found
