import pytest

from rampcli.runs.metrics import Metric
from rampcli.tracking.points import point_of_event, point_of_step
from run_files import metrics_row


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
