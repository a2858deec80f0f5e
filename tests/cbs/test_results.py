import math
import random
from statistics import stdev
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.cbs.results import (
    FEW_STEPS,
    TOLERANCE,
    add_results,
    branch_lines,
    critical_multiple,
    difference,
    groups_at_the_end,
    mean_loss,
    unpaired_standard_error,
)
from rampcli.runs.directory import COMPLETE
from rampcli.runs.record import read_run
from recorded_runs import write_run

LOSSES = st.lists(st.floats(0, 100), min_size=2, max_size=32)


def of_ten(losses):
    """Groups of ten tokens with these mean losses."""
    return [(10 * loss, 10.0) for loss in losses]


@given(LOSSES, st.randoms(use_true_random=False))
def test_with_groups_of_one_size_the_standard_error_is_that_of_a_mean(losses, source):
    others = [loss + source.uniform(-1, 1) for loss in losses]
    found = difference(of_ten(others), of_ten(losses))
    apart = [a - b for a, b in zip(others, losses, strict=True)]
    assert found.mean == pytest.approx(sum(apart) / len(apart), abs=1e-9)
    assert found.standard_error == pytest.approx(stdev(apart) / math.sqrt(len(apart)), abs=1e-9)


@given(LOSSES, st.floats(-1, 1))
def test_what_all_samples_have_in_common_adds_nothing_to_the_standard_error(losses, shift):
    found = difference(of_ten([loss + shift for loss in losses]), of_ten(losses))
    assert found.mean == pytest.approx(shift, abs=1e-9)
    assert found.standard_error == pytest.approx(0, abs=1e-9)


def test_a_large_group_counts_for_more_than_a_small_one():
    assert mean_loss([(300.0, 100.0), (10.0, 10.0)]) == pytest.approx(310 / 110)


def test_one_group_has_no_standard_error():
    assert difference([(2.0, 1.0)], [(1.0, 1.0)]).standard_error is None


def test_losses_of_other_samples_are_refused():
    with pytest.raises(ValueError, match="same samples"):
        difference([(2.0, 1.0)], [(1.0, 2.0)])


def test_pairs_are_told_apart_better_than_samples_of_their_own():
    source = random.Random(0)
    hard = [source.gauss(3, 0.5) for _ in range(32)]
    others = [loss + source.gauss(0, 0.05) for loss in hard]
    paired = difference(of_ten(others), of_ten(hard)).standard_error
    assert 3 * paired < unpaired_standard_error(of_ten(others), of_ten(hard))


@given(st.lists(st.floats(0, 5), min_size=1, max_size=6))
def test_the_critical_multiple_is_the_largest_that_is_no_worse_than_a_smaller_one(losses):
    by_multiple = {2**at: of_ten([loss, loss]) for at, loss in enumerate(losses)}
    expected = max(
        2**at
        for at, loss in enumerate(losses)
        if all(loss - smaller <= TOLERANCE + 1e-12 for smaller in losses[:at])
    )
    near = any(abs(abs(a - b) - TOLERANCE) < 1e-9 for a in losses for b in losses)
    assert near or critical_multiple(by_multiple) == expected


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
        (validation([[0.0, 0.0]]),),
        (validation([[1.0]]),),
        ({"event": "validation", "consumed_samples": END},),  # of an earlier version
    ],
)
def test_a_loss_that_is_not_known_is_none(events):
    assert groups_of(*events) is None


def test_a_loss_that_is_not_finite_has_no_groups():
    assert groups_of(validation([[None, 1.0], [2.0, 1.0]])) == []


def test_a_branch_as_long_as_the_rest_of_the_run_is_not_called_short():
    facts = {"critical_batch_size": None, "is_lower_bound": False, "branches": [], "notes": []}
    lines = branch_lines({**facts, "samples": 50, "samples_left": 50})
    assert not any("length of a branch" in line for line in lines)


def results_of(folder, losses, *, steps=FEW_STEPS):
    """Results of branches with the same loss in all groups, or with `None` or no groups at all."""
    facts, records = {}, {}
    for multiple, loss in losses.items():
        run = write_run(folder / f"multiple={multiple}", "optim.optimizer=adamw")
        if loss != "absent":
            row = validation([[loss, 1.0]] * 32, step=steps, loss=loss)
            run.append_row(run.events, {"time": 200.0, **row})
        records[multiple] = read_run(run)
        unknown = dict.fromkeys(("loss", "difference", "standard_error", "worse_than"))
        facts[multiple] = {
            "global_batch_size": 8 * multiple,
            "state": COMPLETE,
            "steps": steps,
            **unknown,
        }
    found = add_results(
        facts, records, end_sample=END, sequence_length=16, world_size=1, decays=True
    )
    return found, " ".join(found["notes"])


def test_branches_that_learn_alike_have_no_notes(tmp_path):
    found, notes = results_of(tmp_path, {1: 2.0, 2: 2.0, 4: 2.5})
    assert (found["critical_batch_size"], notes) == (16, "")


def test_a_loss_that_is_not_finite_is_worse_and_one_that_is_absent_is_unknown(tmp_path):
    found, notes = results_of(tmp_path / "infinite", {1: 2.0, 2: None})
    assert (found["critical_batch_size"], "multiple 2 is not finite" in notes) == (8, True)
    found, notes = results_of(tmp_path / "absent", {1: 2.0, 2: "absent"})
    assert (found["critical_batch_size"], "not finite" in notes) == (None, False)
    assert "multiple 2 was not validated" in notes


def test_a_result_that_is_not_monotone_is_said_to_be_uncertain(tmp_path):
    found, notes = results_of(tmp_path, {1: 2.0, 2: 2.5, 4: 2.0, 8: 2.5})
    assert found["critical_batch_size"] == 32
    assert "multiple 2 did worse, and the larger 4 did not" in notes


def test_a_note_on_few_steps_says_how_many_tokens_are_enough(tmp_path):
    _, notes = results_of(tmp_path, {1: 2.0, 2: 2.0}, steps=FEW_STEPS - 1)
    assert f"multiple 1 and 2: fewer than {FEW_STEPS} steps" in notes
    assert f"--tokens {FEW_STEPS * 16 * 16} is enough" in notes


LENGTH = {"samples": 50, "samples_left": 400}


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
    facts = {"branches": branches(4, 8, 16), "notes": ["rough"], **LENGTH}
    line, *_, note = branch_lines({**result, **facts})
    assert text in line
    assert note == "note: rough"


@pytest.mark.parametrize(("left", "text"), [(400, "12.5% of the rest"), (None, "50 samples; it")])
def test_the_length_of_a_branch_is_said_as_a_share_of_the_rest_of_the_run(left, text):
    facts = {"critical_batch_size": None, "is_lower_bound": False, "branches": [], "notes": []}
    *_, line = branch_lines({**facts, **LENGTH, "samples_left": left})
    assert text in line
    assert "--tokens" in line
