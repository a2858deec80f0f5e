import json
import re

import pytest

from rampcli.config.compose import apply_overrides
from rampcli.config.memory import KINDS
from rampcli.config.resolve import resolve
from rampcli.config.stage_memory import (
    GB,
    device_memory_bytes,
    fullest_stage,
    stage_memory,
)
from rampcli.report.memory import (
    CONTEXT_BYTES,
    USABLE_SHARE,
    estimate_table,
    estimates,
    memory_cell,
    memory_notes,
    plan_with_memory,
    shorten_bytes,
)
from rampcli.report.plan_tables import plan_summary, plan_table

TOO_LARGE = ("gpt3_5b", "trainer.device_memory_gb=32")
"""Its first stage fits, the others do not."""


def peaks(resolved) -> list[int]:
    return [stage_memory(resolved, stage).peak_bytes for stage in resolved.plan.stages]


def remedies(resolved) -> list[list[str]]:
    """Returns the remedies of the only note, each a list of overrides."""
    (note,) = memory_notes(resolved)
    _, found, words = note.partition("; fits with ")
    assert found
    return [remedy.split() for remedy in words.split(", or ")]


def test_a_plan_shows_the_estimate_of_each_stage(planned):
    resolved = planned("gpt3_5b")
    (column,) = (
        each for each in plan_table(resolved, width=200).columns if each.header == "memory"
    )
    assert [*column.cells] == [*(memory_cell(resolved, each) for each in resolved.plan.stages), ""]
    assert memory_cell(resolved, resolved.plan.stages[0]) == "~28GB"


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(3 * 2**20, "3MB"), (1.5 * GB, "1.5GB"), (80 * GB, "80GB"), (2000 * GB, "2,000GB")],
)
def test_sizes_have_two_digits_or_more(size_bytes, text):
    assert shorten_bytes(round(size_bytes)) == text


def test_stages_that_exceed_the_memory_are_named_with_the_largest_estimate(planned):
    resolved = planned(*TOO_LARGE)
    (note,) = memory_notes(resolved)
    assert note.startswith("an estimated 47GB of 32GB per GPU in stages 1 to 7; fits with ")
    assert f"note: {note}" in plan_summary(resolved)


def test_stages_between_which_others_fit_are_counted(planned):
    schedule = "model.step_batch_size_schedule='0:512 1B:256 2B:512'"
    (note,) = memory_notes(planned(*TOO_LARGE, schedule, "trainer.num_nodes=8"))
    assert note.startswith("an estimated 47GB of 32GB per GPU in 2 stages; ")


@pytest.mark.parametrize(
    "words",
    [
        TOO_LARGE,
        ("llama3_8b", "data.micro_batch_size=4"),
        ("gpt3_5b", "trainer.device_memory_gb=64", "parallel.data_parallel_shard_size=2"),
        ("gpt3_5b", "trainer.device_memory_gb=20"),
        ("llama3_8b", "trainer.device_memory_gb=40", "trainer.accumulate_grad_batches=128"),
    ],
    ids=" ".join,
)
def test_each_remedy_fits_with_room_to_spare_and_trains_the_same_batches(planned, words):
    resolved = planned(*words)
    usable = USABLE_SHARE * device_memory_bytes(resolved.config) - CONTEXT_BYTES
    for remedy in remedies(resolved):
        changed = resolve(apply_overrides(resolved.config, remedy))
        assert max(peaks(changed)) <= usable
        assert [stage.global_batch_size for stage in changed.plan.stages] == [
            stage.global_batch_size for stage in resolved.plan.stages
        ]


def test_the_remedy_is_the_largest_micro_batch_that_fits(planned):
    words = ("gpt3_5b", "trainer.device_memory_gb=44")
    found = [word for remedy in remedies(planned(*words)) for word in remedy]
    (size,) = (int(word[-1]) for word in found if word.startswith("data.micro_batch_size="))
    usable = USABLE_SHARE * 44 * GB - CONTEXT_BYTES
    larger = [each for each in (1, 2, 4) if each > size]
    assert larger
    for each in larger:
        assert max(peaks(planned(*words, f"data.micro_batch_size={each}"))) > usable


def test_a_plan_that_no_change_fits_says_so(planned):
    (note,) = memory_notes(planned("llama3_8b", "trainer.device_memory_gb=1"))
    assert note.endswith("do not suffice")


def test_without_a_known_memory_there_is_no_note(planned, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert memory_notes(planned("llama3_8b", "trainer.device_memory_gb=null")) == []


def test_the_json_of_a_plan_has_the_bytes_of_each_stage_and_none_for_finished_ones(planned):
    resolved = planned("gpt3_5b")
    data = plan_with_memory(resolved)
    assert [stage.pop("memory_bytes") for stage in data["stages"]] == peaks(resolved)
    assert data == resolved.plan.to_json()


def test_the_estimates_of_several_micro_batches_are_the_rows_of_the_table(planned):
    resolved = planned("llama3_8b")
    sizes = (1, 2, 4)
    rows, table = estimates(resolved, sizes), estimate_table(resolved, sizes)
    assert json.loads(json.dumps(rows)) == rows
    assert [row["micro_batch_size"] for row in rows] == list(sizes)
    assert rows[0]["peak_bytes"] == stage_memory(resolved, fullest_stage(resolved)).peak_bytes
    for row in rows:
        assert sum(row[f"{kind}_bytes"] for kind in KINDS) == row["peak_bytes"]
        assert row["fits"] == (
            row["peak_bytes"] <= USABLE_SHARE * row["device_memory_bytes"] - CONTEXT_BYTES
        )
    shown = {str(column.header): [*column.cells] for column in table.columns}
    assert shown["estimate"] == [shorten_bytes(row["peak_bytes"]) for row in rows]
    assert shown["fits"] == ["yes" if row["fits"] else "no" for row in rows]
    assert all(re.fullmatch(r"[\d,.]+[GM]B", cell) for kind in KINDS for cell in shown[kind])
