"""Plans of step schedules."""

import pytest

from plans import fleet_of, plan, scheduled
from rampcli.errors import UsageError, set_to


def test_a_step_schedule_is_planned_stage_by_stage_and_a_shrinking_batch_is_noted():
    planned = scheduled("0:16 640:4 1280:12", fleet=fleet_of(4, 1), max_steps=40)
    assert [
        (
            stage.global_batch_size,
            stage.first_sample,
            stage.first_step,
            stage.steps,
            stage.num_nodes,
        )
        for stage in planned.stages
    ] == [
        (16, 0, 0, 4, 4),
        (4, 64, 4, 16, 4),
        (12, 128, 20, 20, 4),
    ]
    assert planned.notes == ("the batch shrinks, as scheduled: 16 to 4 after 64 samples",)


def test_a_batch_that_is_scheduled_twice_is_refused():
    with pytest.raises(UsageError) as refusal:
        plan([4, 4, 24], 16, schedule="0:4 240:16", fleet=fleet_of(1, 1))
    assert refusal.value.keys == ("model.rampup_batch_size", "model.step_batch_size_schedule")


def test_the_last_size_of_a_step_schedule_is_the_global_batch_size():
    assert scheduled("0:4 240:16", fleet=fleet_of(1, 1)).global_batch_size == 16
    assert scheduled("0:4 240:16", target=16, fleet=fleet_of(1, 1)).global_batch_size == 16
    with pytest.raises(UsageError, match=r"ends at 16, but model\.global_batch_size=32") as refusal:
        scheduled("0:4 240:16", target=32, fleet=fleet_of(1, 1))
    assert refusal.value.remedies == (set_to("model.global_batch_size", 16, None),)


@pytest.mark.parametrize(
    ("text", "run", "problem"),
    [
        ("0:4 240:6 480:16", {"micro": 2, "fleet": fleet_of(1, 2)}, "batch 6 (stage 1) is not a"),
        (
            "samples: 0:16 1000:128",
            {"micro": 4, "fleet": fleet_of(9, 2)},
            "batch 128 (stage 1) does not divide ",
        ),
    ],
)
def test_a_size_of_a_step_schedule_is_refused_as_a_stage_with_a_remedy(text, run, problem):
    with pytest.raises(UsageError) as refusal:
        scheduled(text, **run)
    assert refusal.value.message.startswith(problem)
    assert refusal.value.keys[0] == "model.step_batch_size_schedule"
    assert "model.global_batch_size" not in refusal.value.remedy
