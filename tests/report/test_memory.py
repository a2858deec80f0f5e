import json
import re

import pytest

from rampcli.estimate.memory import MEMORY_KINDS
from rampcli.planning.stage_memory import (
    GIB,
    fullest_stage,
    shorten_bytes,
    stage_memory,
    usable_bytes,
)
from rampcli.report.memory import (
    estimate_table,
    estimates,
    memory_cell,
    memory_notes,
)
from rampcli.report.plan_tables import plan_summary, plan_table
from report.table_cells import cells

LAST = "trainer.accumulate_reduce=last"
TOO_LARGE = ("gpt3_5b", "trainer.device_memory_gb=32", LAST)
"""Its first stage fits, the others do not."""


def peaks(resolved) -> list[int]:
    return [stage_memory(resolved.phases[0], stage).peak_bytes for stage in resolved.plan.stages]


def test_a_plan_shows_the_estimate_of_each_stage(planned):
    resolved = planned("gpt3_5b")
    (column,) = (
        each for each in plan_table(resolved, width=200).columns if each.header == "memory"
    )
    assert [*column.cells] == [
        *(memory_cell(resolved.phases[0], each) for each in resolved.plan.stages),
        "",
    ]
    assert memory_cell(resolved.phases[0], resolved.plan.stages[0]) == "~28GiB"


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(3 * 2**20, "3MiB"), (1.5 * GIB, "1.5GiB"), (80 * GIB, "80GiB"), (2000 * GIB, "2,000GiB")],
)
def test_sizes_have_two_digits_or_more(size_bytes, text):
    assert shorten_bytes(round(size_bytes)) == text


def test_stages_that_exceed_the_memory_are_named_with_the_largest_estimate(planned):
    resolved = planned(*TOO_LARGE)
    (note,) = memory_notes(resolved.phases[0])
    assert note.startswith(
        "an estimated 47GiB per GPU in stages 1 to 7, where 28GiB of 32GiB are usable; fits with "
    )
    assert f"note: {note}" in plan_summary(resolved)


def test_stages_between_which_others_fit_are_counted(planned):
    schedule = "model.step_batch_size_schedule='0:512 1B:256 2B:512'"
    (note,) = memory_notes(planned(*TOO_LARGE, schedule, "trainer.num_nodes=8").phases[0])
    assert note.startswith("an estimated 47GiB per GPU in 2 stages, where ")


def test_a_note_appears_exactly_where_the_estimate_does_not_fit(planned):
    words = ("llama3_8b", "model.global_batch_size=64", "data.micro_batch_size=2", LAST)
    (peak,) = peaks(planned(*words))
    for memory_gb in range(60, 130, 2):
        resolved = planned(*words, f"trainer.device_memory_gb={memory_gb}")
        fits = peak <= usable_bytes(resolved.config, memory_gb * GIB)
        assert bool(memory_notes(resolved.phases[0])) is not fits
        (row,) = estimates(resolved, [2])
        assert row["fits"] is fits


def test_a_plan_that_no_change_fits_says_so(planned):
    (note,) = memory_notes(planned("llama3_8b", "trainer.device_memory_gb=1").phases[0])
    assert note.endswith("do not suffice")


def test_without_a_known_memory_there_is_no_note(planned, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert memory_notes(planned("llama3_8b", "trainer.device_memory_gb=null").phases[0]) == []


def test_the_estimates_of_several_micro_batches_are_the_rows_of_the_table(planned):
    resolved = planned("llama3_8b")
    sizes = (1, 2, 4)
    rows, table = estimates(resolved, sizes), estimate_table(resolved, sizes)
    assert json.loads(json.dumps(rows)) == rows
    assert [row["micro_batch_size"] for row in rows] == list(sizes)
    assert (
        rows[0]["peak_bytes"]
        == stage_memory(resolved.phases[0], fullest_stage(resolved)).peak_bytes
    )
    for row in rows:
        assert sum(row[f"{kind}_bytes"] for kind in MEMORY_KINDS) == row["peak_bytes"]
        assert row["fits"] == (
            row["peak_bytes"] <= usable_bytes(resolved.config, row["device_memory_bytes"])
        )
    shown = cells(table)
    assert shown["estimate"] == [shorten_bytes(row["peak_bytes"]) for row in rows]
    assert shown["fits"] == ["yes" if row["fits"] else "no" for row in rows]
    assert all(
        re.fullmatch(r"[\d,.]+[GM]iB", cell) for kind in MEMORY_KINDS for cell in shown[kind]
    )
