"""Each row is logged once and in order, whatever was killed or repeated."""

from time import sleep

import pytest

from rampcli.errors import DamagedFileError
from rampcli.runs.directory import RunDirectory
from rampcli.runs.metrics import Metric
from rampcli.runs.rows import end_of_step
from rampcli.tracking import follow
from rampcli.tracking.follow import Follower, point_of_event, point_of_step
from rampcli.tracking.tracker import (
    SAMPLES_AXIS,
    TOKENS_AXIS,
    begin_position,
    read_position,
    save_position,
)
from run_files import metrics_row

LOSS, VALIDATION = "train/loss", "validation/loss"


class Recorder:
    """A tracker that keeps its points, and loses those after the last flush when it is killed."""

    def __init__(self, *, is_safe: bool = True) -> None:
        self.facts, self.logged, self.is_safe = {}, 0, is_safe
        self.points, self.kept = [], []

    def log_config(self, settings) -> None:
        raise NotImplementedError

    def log(self, metrics, step, *, time) -> None:
        self.points.append((step, next(tag for tag in (LOSS, VALIDATION) if tag in metrics)))
        self.last = (dict(metrics), time)

    def flush(self) -> bool:
        if self.is_safe:
            self.kept = list(self.points)
        return self.is_safe

    def close(self) -> None:
        self.kept = list(self.points)

    def be_killed(self) -> None:
        self.points = list(self.kept)


@pytest.fixture
def run(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.claim()
    return directory


@pytest.fixture
def following(run):
    """Starts to follow the run as a new process does."""

    def start(tracker):
        begin_position(run, "planted")
        return Follower(
            run,
            tracker,
            read_position(run, "planted"),
            lambda position: save_position(run, "planted", position),
            tokens_at=lambda samples: 16 * samples,
        )

    return start


def take_steps(run, *steps: int) -> None:
    for step in steps:
        run.append_row(run.metrics, metrics_row(step=step, consumed_samples=4 * step, time=step))


def validate(run, step: int) -> None:
    run.append_event("validation", step=step, consumed_samples=4 * step, loss=3.5)


def start(run, step: int) -> None:
    run.drop_rows_after(step)
    run.append_event("start", step=step)


def steps_of(tracker) -> list[int]:
    return [step for step, tag in tracker.points if tag == LOSS]


def test_validations_are_logged_between_the_steps_they_belong_to(run, following):
    tracker = Recorder()
    follower = following(tracker)
    start(run, 0)
    validate(run, 0)
    take_steps(run, 1, 2)
    validate(run, 2)
    take_steps(run, 3)
    follower.pass_on()
    assert tracker.points == [
        (0, VALIDATION),
        (1, LOSS),
        (2, LOSS),
        (2, VALIDATION),
        (3, LOSS),
    ]
    metrics, time = tracker.last
    assert (metrics[SAMPLES_AXIS], metrics[LOSS], time) == (12.0, 2.5, 3)


def test_a_validation_waits_for_the_row_of_its_step(run, following):
    tracker = Recorder()
    follower = following(tracker)
    start(run, 0)
    take_steps(run, 1)
    validate(run, 2)
    follower.pass_on()
    assert tracker.points == [(1, LOSS)]
    take_steps(run, 2)
    follower.close()
    assert tracker.points[1:] == [(2, LOSS), (2, VALIDATION)]
    assert tracker.last[0] == {SAMPLES_AXIS: 8.0, TOKENS_AXIS: 128.0, VALIDATION: 3.5}


@pytest.mark.parametrize("is_safe", [True, False])
def test_a_killed_tracker_and_repeated_steps_leave_no_doubled_steps_and_no_gap(
    run, following, is_safe
):
    tracker = Recorder(is_safe=is_safe)
    follower = following(tracker)
    start(run, 0)
    take_steps(run, *range(1, 6))
    validate(run, 5)
    follower.pass_on()
    take_steps(run, 6, 7)
    tracker.be_killed()
    start(run, 4)  # its checkpoint is older than what the tracker has
    following(tracker).pass_on()
    take_steps(run, 5)
    validate(run, 5)
    take_steps(run, 6, 7, 8)
    tracker.be_killed()
    following(tracker).close()
    assert steps_of(tracker) == list(range(1, 9))
    assert [step for step, tag in tracker.points if tag == VALIDATION] == [5]


def test_steps_that_are_repeated_while_the_end_of_those_logged_is_searched_are_not_doubled(
    run, following, monkeypatch
):
    tracker = Recorder()
    follower = following(tracker)
    start(run, 0)
    take_steps(run, 1, 2, 3, 4)
    follower.pass_on()
    start(run, 2)

    def search_while_steps_are_repeated(path, step):
        end = end_of_step(path, step)
        monkeypatch.undo()
        take_steps(run, 3, 4, 5)
        return end

    monkeypatch.setattr(follow, "end_of_step", search_while_steps_are_repeated)
    follower.close()
    assert steps_of(tracker) == [1, 2, 3, 4, 5]


def test_points_that_a_tracker_still_has_after_a_kill_are_not_logged_again(run, following):
    start(run, 0)
    take_steps(run, 1, 2, 3, 4)
    tracker = Recorder()
    tracker.logged = 3
    following(tracker).close()
    assert steps_of(tracker) == [4]


def test_a_resume_that_cuts_the_file_while_it_is_followed_is_no_damage(run, following, monkeypatch):
    monkeypatch.setattr(follow, "RETRY_S", 0.0)
    tracker = Recorder()
    follower = following(tracker)
    start(run, 0)
    take_steps(run, 1, 2)
    with run.metrics.open("ab") as file:
        file.write(b'{"step": 3, "torn\n')
    assert follower.pass_on()
    assert tracker.points == []
    with run.metrics.open("r+b") as file:
        file.truncate(file.read().rfind(b'{"step": 3'))
    take_steps(run, 3)
    follower.close()
    assert steps_of(tracker) == [1, 2, 3]


def test_a_row_that_stays_damaged_ends_the_tracker(run, following, monkeypatch):
    monkeypatch.setattr(follow, "RETRY_S", 0.0)
    follower = following(Recorder())
    run.metrics.write_bytes(b'{"step": "one"}\n')
    with pytest.raises(DamagedFileError, match="step is not a whole number"):
        follower.close()


def test_few_rows_are_in_memory_at_once_and_all_are_logged(run, following, monkeypatch):
    monkeypatch.setattr(follow, "MOST_HELD_ROWS", 2)
    start(run, 0)
    take_steps(run, *range(1, 8))
    tracker = Recorder()
    follower = following(tracker)
    assert follower.pass_on()
    assert steps_of(tracker) == [1, 2]
    follower.close()
    assert steps_of(tracker) == list(range(1, 8))


def test_a_run_that_starts_again_from_step_0_has_curves_of_its_own(run, following):
    first = Recorder()
    follower = following(first)
    start(run, 0)
    validate(run, 0)
    take_steps(run, 1, 2)
    follower.close()
    run.set_metrics_aside()
    second = Recorder()
    follower = following(second)
    start(run, 0)
    take_steps(run, 1)
    validate(run, 1)
    follower.close()
    assert second.points == [(1, LOSS), (1, VALIDATION)]
    assert (run.path / "trackers.1" / "planted.json").is_file()


def test_a_tracker_that_is_added_later_gets_the_whole_run_and_no_earlier_attempt(run, following):
    start(run, 0)
    validate(run, 0)
    take_steps(run, 1)
    run.set_metrics_aside()
    start(run, 0)
    validate(run, 0)
    take_steps(run, 1, 2)
    tracker = Recorder()
    following(tracker).close()
    assert tracker.points == [(0, VALIDATION), (1, LOSS), (2, LOSS)]


def test_a_damaged_position_is_refused(run):
    run.make_folder(run.trackers)
    (run.trackers / "planted.json").write_text('{"step": -1}')
    with pytest.raises(DamagedFileError, match="step is not a whole number, 0 or more"):
        begin_position(run, "planted")


def test_a_backlog_that_is_too_long_for_the_time_left_is_continued_later(run, following):
    start(run, 0)
    take_steps(run, *range(1, 6))
    tracker = Recorder(is_safe=False)
    follower = following(tracker)
    log = tracker.log

    def log_slowly(metrics, step, *, time) -> None:
        sleep(0.05)
        log(metrics, step, time=time)

    tracker.log = log_slowly
    assert not follower.close(within_s=0.12)
    logged = steps_of(tracker)
    assert logged == list(range(1, len(logged) + 1))
    assert len(logged) < 5
    tracker.log = log
    assert following(tracker).close()
    assert steps_of(tracker) == [1, 2, 3, 4, 5]


def test_columns_become_tags_by_what_they_measure_and_null_has_no_point():
    row = metrics_row(mfu=0.4, grad_norm=None, order_hash="12", peak_memory_bytes=8, shiny=1)
    point = point_of_step(row | {"time": 7.5, "consumed_tokens": 64})
    assert (point.step, point.time, point.samples, point.tokens) == (1, 7.5, 4, 64)
    assert point.metrics.keys() == {
        *("train/loss", "train/shiny", "memory/peak_memory_bytes"),
        *(f"batch/{name}" for name in ("global_batch_size", "accumulate_grad_batches")),
        *("batch/stage", "batch/world_size"),
        *(f"throughput/{name}" for name in ("step_time_s", "samples_per_s", "tokens_per_s", "mfu")),
    }


def test_a_value_that_no_tracker_can_take_has_no_point():
    point = point_of_step(metrics_row(huge=10**400, consumed_tokens="a", word="a"))
    assert point.tokens is None
    assert not {"train/huge", "train/word"} & point.metrics.keys()


def test_columns_of_reinforcement_learning_are_below_rl():
    point = point_of_step(metrics_row(reward=0.5, pairs=8, consumed_tokens=None))
    assert (point.metrics["rl/reward"], point.metrics["rl/pairs"], point.tokens) == (0.5, 8, None)


@pytest.mark.parametrize(
    ("facts", "metrics"),
    [
        ({"loss": 3.0}, {"validation/loss": 3.0}),
        ({"loss": None}, {}),
        ({"loss": 3.0, "ema_loss": 2.5}, {"validation/loss": 3.0, "validation/ema_loss": 2.5}),
        (
            {"loss": 3.0, "bits_per_byte": 1.5, "corpus": "wi\x1bki"},
            {"validation/loss/wi\\x1bki": 3.0, "validation/bits_per_byte/wi\\x1bki": 1.5},
        ),
    ],
)
def test_a_validation_has_a_curve_for_each_corpus(facts, metrics):
    event = {"event": "validation", "time": 1.0, "step": 5, "consumed_samples": 20, **facts}
    point = point_of_event(event, tokens_at=lambda samples: 16 * samples)
    assert (point.metrics, point.step, point.tokens) == (metrics, 5, 320)


def test_an_evaluation_has_curves_and_a_checkpoint_has_none():
    event = {"event": "evaluation", "time": 1.0, "step": 5, "consumed_samples": 20}
    point = point_of_event({**event, "greedy": 0.5, "reason": "none"}, tokens_at=None)
    assert point.metrics == {"evaluation/greedy": 0.5}
    assert point_of_event({"event": "checkpoint"}, tokens_at=None) is None


def test_a_column_that_an_observer_has_declared_has_the_tag_that_it_declares():
    declared = [Metric("norm_1", "", group="layers"), Metric("plain", "")]
    point = point_of_step(metrics_row(norm_1=2.0, plain=3.0), declared)
    assert (point.metrics["layers/norm_1"], point.metrics["train/plain"]) == (2.0, 3.0)
