from types import SimpleNamespace

import pytest

from rampcli.report.branch_results import branch_lines, groups_at_the_end

END = 100


def validation(groups, *, at=END, **facts):
    return {"event": "validation", "consumed_samples": at, "groups": groups, **facts}


def groups_of(*events):
    return groups_at_the_end(SimpleNamespace(events=events), end_sample=END)


def test_only_the_last_validation_at_the_end_counts():
    early, repeated, last = [[9.0, 1.0]], [[8.0, 1.0]], [[2.0, 1.0], [3.0, 1.0]]
    events = validation(early, at=50), validation(repeated), validation(last)
    assert groups_of(*events) == [(2.0, 1.0), (3.0, 1.0)]


def test_the_groups_of_all_corpora_count():
    events = validation([[2.0, 1.0]], corpus="a"), validation([[3.0, 1.0]], corpus="b")
    assert groups_of(*events) == [(2.0, 1.0), (3.0, 1.0)]


@pytest.mark.parametrize(
    "events",
    [
        (),
        (validation([[None, 1.0], [2.0, 1.0]]),),
        (validation([[0.0, 0.0]]),),
        (validation([[1.0]]),),
        ({"event": "validation", "consumed_samples": END},),  # of an earlier version
    ],
)
def test_a_loss_that_is_not_known_is_none(events):
    assert groups_of(*events) is None


def branches(*batches):
    return [{"global_batch_size": batch} for batch in batches]


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"critical_batch_size": None, "is_lower_bound": False}, "not known"),
        ({"critical_batch_size": 16, "is_lower_bound": True}, "16 samples or more"),
        ({"critical_batch_size": 8, "is_lower_bound": False}, "8 samples; the next"),
    ],
)
def test_the_critical_batch_is_said_to_be_a_bound_if_it_is_one(result, text):
    line, _, note = branch_lines({**result, "branches": branches(4, 8, 16), "notes": ["rough"]})
    assert text in line
    assert note == "note: rough"
