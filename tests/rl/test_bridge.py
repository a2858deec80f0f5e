import torch

from rampcli.rl.bridge import Staging


def test_weights_of_all_shapes_and_types_go_through_the_same_memory():
    """Allocating pinned memory takes longer than the copy that it makes faster."""
    staging = Staging()
    shapes = ((64, 8), (3,), (), (0, 8), (16, 32))
    largest = torch.zeros(64, 8, dtype=torch.float64)
    place = staging.memory_for(largest).data_ptr()
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for shape in shapes:
            weight = torch.randn(shape, dtype=dtype)
            received = staging.memory_for(weight).copy_(weight)
            assert torch.equal(received, weight)
            assert received.dtype is dtype
            assert received.data_ptr() in (place, 0)
