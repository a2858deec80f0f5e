"""Replicas average their gradients during the backward pass."""

from parallel.overlapped import (
    average_of_unusual_weights,
    gradient_of_two_passes,
    gradient_without_a_layer,
    lives_on,
    operations,
)
from ranks import run_ranks

OPERATIONS = [
    "compute",  # the forward pass and the head
    "average gradients",  # of the head
    "compute",  # layer 1
    "average gradients",
    "compute",  # layer 0
    "average gradients",  # of layer 0, then of the embedding
    "have averages",
]


def test_a_layer_computes_while_gradients_are_averaged(tmp_path):
    for names in run_ranks(2, operations, 1, logs=tmp_path):
        assert names == OPERATIONS


def test_gradients_of_passes_add_up(tmp_path):
    assert run_ranks(2, gradient_of_two_passes, 1, logs=tmp_path) == [True, True]


def test_weights_without_a_gradient_are_left_out(tmp_path):
    first, second = run_ranks(2, gradient_without_a_layer, logs=tmp_path)
    assert first == second
    assert {name for name, gradient in first.items() if gradient is None} == {
        name for name in first if name.startswith("layers.0.")
    }


def test_shared_and_frozen_weights_and_any_layout_are_averaged_once(tmp_path):
    for found in run_ranks(2, average_of_unusual_weights, logs=tmp_path):
        assert found.count(None) == 1
        assert set(found) == {None, True}


def test_the_weights_of_a_replicated_model_are_freed(tmp_path):
    assert run_ranks(2, lives_on, logs=tmp_path) == [False, False]
