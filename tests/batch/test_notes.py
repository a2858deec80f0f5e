import pytest

from rampcli.batch.notes import MANY_MICRO_BATCHES, MOST_NOTED, accumulation_notes, plan_notes
from rampcli.batch.ramp import RampSchedule


def notes(ramp):
    return plan_notes(ramp, ramp.stages, (), 10)


def test_an_ordinary_plan_has_no_notes():
    assert notes(RampSchedule.from_rampup([4, 4, 1000], global_batch_size=16)) == ()


@pytest.mark.parametrize("increments", [MOST_NOTED, MOST_NOTED + 1, 5000])
def test_skipped_sizes_are_named_and_many_are_counted(increments):
    ramp = RampSchedule.from_rampup([1, 1, 1], global_batch_size=increments + 2)
    skipped = [
        size
        for size in ramp.scheduled_sizes()
        if size not in {stage.scheduled_batch_size for stage in ramp.stages}
    ]
    assert len(skipped) == increments
    (note,) = notes(ramp)
    assert note.startswith(
        f"the ramp skips batch sizes with a share shorter than one batch: {skipped[0]}, "
    )
    assert note.endswith("in all)") == (increments > MOST_NOTED)
    assert len(note) < 200


def test_decreased_sizes_are_named_with_the_sizes_that_run_instead():
    ramp = RampSchedule.from_rampup([6, 6, 1000], global_batch_size=18).with_decreased(
        {6: 4, 18: 16}
    )
    (note,) = notes(ramp)
    assert note.endswith(": 6 to 4, 18 to 16")


def test_many_micro_batches_per_step_call_for_larger_ones():
    assert accumulation_notes(MANY_MICRO_BATCHES - 1) == []
    (note,) = accumulation_notes(MANY_MICRO_BATCHES)
    assert note.startswith("16 micro batches per step add no throughput")
    assert "data.micro_batch_size" in note
