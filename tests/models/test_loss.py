import pytest
import torch
import torch.nn.functional as F

from models.projections import VOCABULARY, LargestTensor, some_tokens
from rampcli.data.corpus import IGNORED
from rampcli.models import parts
from rampcli.models.linear import OutputProjection
from rampcli.models.loss import ZLoss, summed_loss
from rampcli.models.parts import TOKENS_AT_ONCE, Linear


@pytest.fixture(autouse=True)
def _of_a_large_vocabulary(monkeypatch):
    monkeypatch.setattr(parts, "LOGITS_AT_ONCE", TOKENS_AT_ONCE["cpu"] * VOCABULARY)


def z_loss_of(weight: float) -> ZLoss:
    return ZLoss(weight, torch.zeros((), dtype=torch.float64))


def gradients(hidden, output, loss):
    found = torch.autograd.grad(loss, (hidden, output.weight))
    return [gradient.float() for gradient in found]


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-2)])
@pytest.mark.parametrize("tokens", [10, TOKENS_AT_ONCE["cpu"], 2 * TOKENS_AT_ONCE["cpu"] + 6])
def test_the_chunked_loss_and_its_gradients_equal_cross_entropy_for_any_chunk_size(
    tokens, dtype, atol
):
    hidden, output, labels = some_tokens(tokens, dtype)
    whole = F.cross_entropy(
        output(hidden).flatten(0, 1).float(),
        labels.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
    )
    loss = summed_loss(hidden, output, labels)
    assert loss.dtype is torch.float32
    assert loss.item() == pytest.approx(whole.item(), rel=1e-6)
    # Gradients of a bf16 weight are rounded to about three digits.
    for gradient, expected in zip(
        gradients(hidden, output, loss * 0.5), gradients(hidden, output, whole * 0.5), strict=True
    ):
        torch.testing.assert_close(
            gradient, expected, atol=atol, rtol=2e-2 if dtype is torch.bfloat16 else 1e-5
        )
    with torch.no_grad():
        assert summed_loss(hidden, output, labels).item() == loss.item()


@pytest.mark.parametrize("weight", [1e-5, 0.3])
@pytest.mark.parametrize("drift", [-8, 0, 8])
@pytest.mark.parametrize(
    ("dtype", "rounding"),
    # Logits in bf16 are rounded to about three digits.
    [(torch.float64, 1e-14), (torch.float32, 2e-6), (torch.bfloat16, 2e-2)],
)
@pytest.mark.parametrize("tokens", [10, 2 * TOKENS_AT_ONCE["cpu"] + 6])
def test_a_z_loss_adds_its_gradient_and_leaves_the_loss_as_it_is(
    tokens, dtype, rounding, drift, weight
):
    """The oracle computes whole logits in double precision. All of them drift by one number."""
    hidden, output, labels = some_tokens(tokens, dtype)
    with torch.no_grad():
        hidden[..., 0] = 1
        output.weight[:, 0] += drift
    exact = [each.detach().double().requires_grad_() for each in (hidden, output.weight)]
    logits = (exact[0] @ exact[1].t()).flatten(0, 1)[labels.flatten() >= 0]
    z = logits.logsumexp(dim=1).square().sum()
    entropy = F.cross_entropy(logits, labels[labels >= 0], reduction="sum")
    expected = torch.autograd.grad(0.5 * (entropy + weight * z), exact)
    z_loss = z_loss_of(weight)
    loss = summed_loss(hidden, output, labels, z_loss=z_loss)
    assert loss.item() == summed_loss(hidden, output, labels).item()
    assert z_loss.sum.item() == pytest.approx(z.item(), rel=rounding)
    found = torch.autograd.grad(0.5 * loss, (hidden, output.weight))
    for gradient, reference in zip(found, expected, strict=True):
        assert (gradient.double() - reference).norm() < rounding * reference.norm()


@pytest.mark.parametrize("drift", [-20.0, 20.0])
def test_a_z_loss_pushes_log_z_towards_0(drift):
    hidden, output, labels = some_tokens(20)
    with torch.no_grad():
        hidden[..., 0] = 1
        output.weight[:, 0] += drift
    with_it, without = (
        torch.autograd.grad(summed_loss(hidden, output, labels, z_loss=each), output.weight)[0]
        for each in (z_loss_of(1e-4), None)
    )

    def log_z():
        return output(hidden).logsumexp(dim=-1)[labels >= 0].abs()

    before = log_z()
    with torch.no_grad():
        output.weight -= with_it - without
    assert (log_z() < before).all()


def test_a_softmax_without_a_gradient_leaves_the_one_of_the_label():
    """The derivative of log(Z) + log(Z)^2 is exactly 0 where log(Z) is -1/2."""
    output = OutputProjection(Linear(inputs=1, outputs=1, has_bias=False, split="logits"))
    with torch.no_grad():
        output.weight.fill_(-0.5)
    hidden, labels = torch.ones(1, 2, 1, requires_grad=True), torch.zeros(1, 2, dtype=torch.int64)
    of_hidden, of_weight = gradients(
        hidden, output, summed_loss(hidden, output, labels, z_loss=z_loss_of(1.0))
    )
    torch.testing.assert_close(of_hidden, torch.full((1, 2, 1), 0.5))
    torch.testing.assert_close(of_weight, torch.tensor([[-2.0]]))


def test_a_z_loss_is_not_summed_without_gradients():
    hidden, output, labels = some_tokens(20)
    z_loss = z_loss_of(1.0)
    with torch.no_grad():
        summed_loss(hidden, output, labels, z_loss=z_loss)
    assert z_loss.sum.item() == 0


@pytest.mark.parametrize("z_loss", [None, z_loss_of(1.0)])
def test_ignored_labels_give_no_loss_and_no_gradient(z_loss):
    hidden, output, labels = some_tokens(20)
    labels[:] = IGNORED
    loss = summed_loss(hidden, output, labels, z_loss=z_loss)
    assert loss.item() == 0
    assert z_loss is None or z_loss.sum.item() == 0
    assert not any(gradient.any() for gradient in gradients(hidden, output, loss))


@pytest.mark.parametrize("z_loss", [None, z_loss_of(1.0)])
def test_the_whole_logits_are_never_in_memory_at_once(z_loss):
    hidden, output, labels = some_tokens(4 * TOKENS_AT_ONCE["cpu"])
    with LargestTensor() as largest:
        summed_loss(hidden, output, labels, z_loss=z_loss).backward()
    assert largest.numbers == TOKENS_AT_ONCE["cpu"] * VOCABULARY
