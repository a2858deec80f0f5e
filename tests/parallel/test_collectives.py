"""On CPUs, collectives of sharded weights run during the passes."""

from parallel.overlapped import gradient_of_two_passes, operations
from ranks import run_ranks

FORWARD = [
    "gather",  # the embedding
    "have weights",
    "gather",  # layer 0
    "have weights",
    "gather",  # layer 1
    "compute",  # layer 0
    "have weights",
    "gather",  # the head
    "compute",  # layer 1
    "have weights",
]
BACKWARD = [
    "gather",  # layer 1
    "send gradients",  # of the head
    "have weights",
    "gather",  # layer 0
    "compute",  # layer 1
    "have gradients",
    "sum gradients",  # of the head
    "send gradients",  # of layer 1
    "have weights",
    "compute",  # layer 0
    "have gradients",
    "sum gradients",  # of layer 1
    *["send gradients", "have gradients", "sum gradients"] * 2,  # of layer 0 and of the embedding
]


def test_a_layer_computes_while_weights_are_gathered_and_gradients_reduced(tmp_path):
    for names in run_ranks(2, operations, 2, logs=tmp_path):
        assert names == FORWARD + BACKWARD


def test_gradients_of_passes_add_up(tmp_path):
    """FSDP adds to gradients before the reduction of new ones could be complete."""
    assert run_ranks(2, gradient_of_two_passes, 2, logs=tmp_path) == [True, True]
