import pytest
import torch
import torch.nn.functional as F

from rampcli.models.norm import FusedRMSNorm, RMSNorm

SIZE, EPSILON = 24, 1e-5


def some(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("shape", [(SIZE,), (7, SIZE), (2, 5, 3, SIZE)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_norm_and_its_gradients_equal_those_of_torch(dtype, shape):
    x, weight, gradient = (
        some(shape, dtype, 0).requires_grad_(),
        some((SIZE,), dtype, 1).requires_grad_(),
        some(shape, dtype, 2),
    )
    norm = RMSNorm(SIZE, eps=EPSILON, dtype=dtype)
    norm.weight = torch.nn.Parameter(weight)
    output, expected = norm(x), F.rms_norm(x.double(), (SIZE,), weight.double(), EPSILON)
    assert output.dtype is dtype
    found = [output, *torch.autograd.grad(output, (x, norm.weight), gradient)]
    wanted = [expected, *torch.autograd.grad(expected, (x, weight), gradient.double())]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other.to(dtype))


def test_without_gradients_the_norm_gives_the_same_bits():
    x, norm = some((2, 5, SIZE), torch.float32, 0).requires_grad_(), RMSNorm(SIZE, eps=EPSILON)
    expected = norm(x)
    with torch.no_grad():
        assert torch.equal(norm(x), expected)


def test_the_backward_pass_of_the_norm_is_its_derivative():
    x, weight = (
        some((3, SIZE), torch.float64, 0).requires_grad_(),
        some((SIZE,), torch.float64, 1).requires_grad_(),
    )
    assert torch.autograd.gradcheck(
        lambda x, weight: FusedRMSNorm.apply(x, weight, EPSILON), (x, weight)
    )


def test_an_input_of_zeros_gives_zeros_and_a_finite_gradient():
    x = torch.zeros(2, SIZE, requires_grad=True)
    output = RMSNorm(SIZE, eps=EPSILON)(x)
    output.sum().backward()
    assert not output.any()
    assert x.grad.isfinite().all()


def test_the_gradient_may_have_any_layout_in_memory():
    """With context parallelism, that of the keys' norm is a transposed part of a larger tensor."""
    x = some((2, 5, 3, SIZE), torch.float32, 0).requires_grad_()
    norm = RMSNorm(SIZE, eps=EPSILON)
    gradient = some((2, 3, 5, SIZE), torch.float32, 2)
    found, expected = (
        torch.autograd.grad(norm(x), (x, norm.weight), one)
        for one in (gradient.transpose(1, 2), gradient.transpose(1, 2).contiguous())
    )
    torch.testing.assert_close(found, expected)
