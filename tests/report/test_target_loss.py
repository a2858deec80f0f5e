import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.report.batch_curve import batch_curve
from rampcli.report.target_loss import (
    Measure,
    TimeToTarget,
    measure_notes,
    measure_of,
    time_to_target,
)
from rampcli.runs.record import read_run
from recorded_runs import write_run
from run_files import metrics_row


def write_losses(path, sizes, losses):
    """Writes a run whose steps have these batch sizes and training losses, each after a second."""
    run, rows, samples = write_run(path), [], 0
    for step, (size, loss) in enumerate(zip(sizes, losses, strict=True), start=1):
        samples += size
        place = {"step": step, "consumed_samples": samples, "global_batch_size": size}
        rows.append(metrics_row(**place, loss=loss) | {"time": 106.0 + step})
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    events = [
        {"event": "launch", "time": 100.0},
        {"event": "start", "time": 106.0, "step": 0, "world_size": 2},
    ]
    run.events.write_text("".join(json.dumps(row) + "\n" for row in events))
    return run


def write_validations(run, losses):
    for step, loss in losses.items():
        event = {"event": "validation", "time": 107.0 + step, "step": step, "loss": loss}
        run.append_row(run.events, event | {"consumed_samples": 4 * step, "validation_s": 1.0})


LOSS = st.one_of(st.none(), st.floats(0, 8))


@given(st.lists(st.tuples(st.integers(1, 9), LOSS), min_size=1, max_size=40), st.floats(0, 8))
def test_a_training_loss_reaches_the_target_with_the_mean_over_the_last_samples(
    tmp_path_factory, steps, target
):
    sizes, losses = zip(*steps, strict=True)
    run = read_run(write_losses(tmp_path_factory.mktemp("run"), sizes, losses))
    measure = measure_of([run])
    window = measure.window_samples
    assert window == 10 * max(sizes)
    expected = None
    for end in range(1, len(sizes) + 1):
        first = end
        while first > 0 and sum(sizes[first:end]) < window:
            first -= 1
        inside = [*zip(sizes[first:end], losses[first:end], strict=True)]
        if sum(sizes[first:end]) < window or any(loss is None for _, loss in inside):
            continue
        mean = sum(size * loss for size, loss in inside) / sum(size for size, _ in inside)
        if abs(mean - target) < 1e-6:
            return  # either answer is right
        if mean < target:
            expected = end
            break
    found = time_to_target(run, target, measure)
    assert (found.reached, found.steps) == (expected is not None, expected)
    if expected:
        assert found.samples == sum(sizes[:expected])
        assert found.tokens == 128 * found.samples
        assert (found.running_s, found.device_s) == (6.0 + expected, 2 * (6.0 + expected))


def test_the_validation_loss_counts_if_all_runs_have_it(tmp_path):
    both = [write_losses(tmp_path / name, [4] * 30, [5.0] * 30) for name in ("one", "other")]
    write_validations(both[0], {0: 4.0, 10: 3.0, 20: 2.0})
    one, other = map(read_run, both)
    assert measure_of([one, other]).corpus is None
    measure = measure_of([one])
    assert (measure.corpus, str(measure)) == ("", "validation loss")
    found = time_to_target(one, 2.5, measure)
    assert (found.steps, found.samples, found.last_step_above) == (20, 80, 10)
    assert found.device_s == 2 * 27.0
    assert measure_notes([one, other], measure_of([one, other])) == (
        "validation losses are not compared, because there are none of other",
    )
    assert measure_notes([one], measure) == ()
    missed = time_to_target(one, 1.5, measure)
    assert (missed.reached, missed.steps, missed.best) == (False, None, 2.0)


def test_a_batch_that_grows_and_falls_back_is_no_point_of_the_curve(tmp_path):
    run = read_run(write_losses(tmp_path / "run", [4, 16, 4], [3.0, 2.0, 1.0]))
    measure = Measure(corpus=None, window_samples=4)
    assert time_to_target(run, 1.5, measure).batches == (4, 16)


def test_a_run_that_measured_nothing_does_not_choose_the_loss(tmp_path):
    run = write_losses(tmp_path / "run", [4] * 30, [5.0] * 30)
    write_validations(run, {0: 4.0})
    started = write_losses(tmp_path / "started", [], [])
    started.state.unlink()
    records = [read_run(started), read_run(run)]
    assert measure_of(records).corpus == ""
    assert not time_to_target(records[0], 9.0, measure_of(records)).reached


@pytest.mark.parametrize(
    ("losses", "above_until", "above_again_at"),
    [
        ({0: 4.0, 10: 2.0, 20: 1.0}, 0, None),
        ({0: 4.0, 10: 2.0, 20: 3.0, 30: 2.0}, 0, 20),
        ({0: 4.0, 10: None, 20: 2.0, 30: None}, 0, 30),
        ({10: 2.0, 20: 1.0}, None, None),
    ],
)
def test_the_measurements_around_the_target_are_known(
    tmp_path, losses, above_until, above_again_at
):
    run = write_losses(tmp_path / "run", [4] * 30, [5.0] * 30)
    write_validations(run, losses)
    record = read_run(run)
    found = time_to_target(record, 2.5, measure_of([record]))
    assert (found.last_step_above, found.above_again_at) == (above_until, above_again_at)


def test_the_hours_of_a_run_that_starts_from_another_are_unknown(tmp_path):
    run = write_losses(tmp_path / "run", [4] * 30, [5.0] * 30)
    run.events.write_text(run.events.read_text().replace('"step": 0', '"step": 7'))
    record = read_run(run)
    found = time_to_target(record, 5.5, measure_of([record]))
    assert (found.first_step, found.running_s, found.device_s) == (7, None, None)


def test_what_changed_up_to_the_target_and_on_which_devices_is_known(tmp_path):
    run = write_losses(tmp_path / "run", [4] * 30, [5.0] * 10 + [3.0] * 20)
    for step, key in ((12, "optim.lr"), (25, "optim.beta2")):
        place = {"time": 106.5 + step, "step": step}
        facts = {"consumed_samples": 4 * step, "setting": key, "old": "1", "new": "2"}
        run.append_row(run.events, {"event": "change", **place, **facts})
        start = {"event": "start", "world_size": 2, "device_name": f"device {step}"}
        run.append_row(run.events, start | place)
    record = read_run(run)
    found = time_to_target(record, 3.5, measure_of([record]))
    assert (found.changed, found.devices) == (("optim.lr",), ("device 12",))
    assert time_to_target(record, 1.0, measure_of([record])).changed == ("optim.lr", "optim.beta2")


def result(batch, steps, **facts):
    return TimeToTarget(
        name=f"b{batch}",
        path="",
        batches=(batch,),
        reached=steps is not None,
        **{
            "steps": steps,
            "samples": None if steps is None else batch * steps,
            "last_step_above": None if not steps else steps - 1,
        }
        | facts,
    )


def test_a_loss_that_a_run_had_before_its_first_step_takes_no_steps(tmp_path):
    run = write_losses(tmp_path / "run", [4] * 3, [5.0] * 3)
    validation = {"event": "validation", "time": 107.0, "step": 0, "loss": 4.0}
    run.append_row(run.events, validation | {"consumed_samples": 0, "validation_s": 1.0})
    found = time_to_target(read_run(run), 4.5, measure_of([read_run(run)]))
    assert (found.steps, found.samples, found.batches) == (0, 0, (4,))


def test_the_curve_has_the_run_with_the_fewest_steps_of_each_batch_size():
    results = [result(8, 100), result(4, 150), result(8, 90), result(16, None)]
    curve = batch_curve(results, ["model.global_batch_size", "optim.lr", "trainer.num_nodes"])
    assert [(point.global_batch_size, point.steps) for point in curve.points] == [(4, 150), (8, 90)]
    assert [point.sample_efficiency for point in curve.points] == [1.0, 600 / 720]
    assert [point.runs for point in curve.points] == [1, 2]
    said = ["optim.lr", "fewest steps", "more tries"]
    assert all(words in note for words, note in zip(said, curve.notes, strict=True))


@pytest.mark.parametrize(
    ("key", "may_differ"),
    [
        ("seed", True),
        ("optim.optimizer", True),
        ("optim.lion.beta", True),
        ("schedule.decay_style", True),
        ("phases.long.optim.lr", True),
        ("trainer.gradient_clip_val", True),
        ("trainer.max_tokens", True),
        ("trainer.precision", False),
        ("data.tokenizer", False),
        ("model.own.width", False),
    ],
)
def test_a_curve_compares_runs_that_differ_in_what_is_tuned_for_a_batch(key, may_differ):
    curve = batch_curve([result(4, 9), result(8, 8)], [key])
    assert bool(curve.points) == may_differ


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"changed": ("optim.lr", "name")}, ["b8 changed optim.lr while"]),
        ({"devices": ("another",)}, ["different devices: one and another"]),
        ({"last_step_above": 80}, ["b8 may have reached the loss over 10%"]),
        ({"changed": ("name",), "devices": ("one",)}, []),
    ],
)
def test_a_curve_says_what_makes_its_points_hard_to_compare(facts, said):
    results = [result(4, 200, devices=("one",)), result(8, 100, **facts)]
    curve = batch_curve(results, [])
    assert len(curve.points) == 2
    assert all(words in note for words, note in zip(said, curve.notes, strict=True))


@pytest.mark.parametrize(
    ("results", "differing", "said"),
    [
        ([result(4, 9), result(8, 9)], ["model.num_layers"], ["num_layers", "more than the batch"]),
        ([result(4, 9), result(8, 9)], ["data.path"], ["", "not be comparable", "no curve"]),
        ([result(4, 9), result(8, None)], [], ["fewer than two points"]),
        ([result(4, 9), result(8, 0)], [], ["first measurement", "fewer than two points"]),
        ([result(4, 9), result(8, 9, first_step=5)], [], ["another run", "fewer than two points"]),
        ([result(4, 9), result(4, 8)], ["data.micro_batch_size"], ["fewer than two points"]),
        ([result(4, 9), result(4, 8)], ["trainer.max_val_samples"], ["", "comparable", "no curve"]),
    ],
)
def test_without_two_comparable_batch_sizes_there_is_no_curve(results, differing, said):
    curve = batch_curve(results, differing)
    assert curve.points == ()
    assert len(curve.notes) == len(said)
    assert all(words in note for words, note in zip(said, curve.notes, strict=True))
