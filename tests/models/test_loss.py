from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from rampcli.data.corpus import IGNORED
from rampcli.models import parts
from rampcli.models.decoder import Decoder
from rampcli.models.linear import OutputProjection
from rampcli.models.loss import ZLoss, summed_loss, token_log_probs
from rampcli.models.parts import LOGIT_TOKENS_AT_ONCE, Linear

VOCABULARY, HIDDEN = 96, 16


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that any operation returned."""

    numbers = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        output = operation(*args, **(kwargs or {}))
        if isinstance(output, torch.Tensor):
            self.numbers = max(self.numbers, output.numel())
        return output


def some_tokens(tokens: int, dtype: torch.dtype = torch.float32):
    """Returns hidden states, a projection, and labels of which some are ignored."""
    generator = torch.Generator().manual_seed(tokens)
    sizes = Linear(inputs=HIDDEN, outputs=VOCABULARY, has_bias=False, split="logits")
    output = OutputProjection(sizes).to(dtype)
    with torch.no_grad():
        output.weight.copy_(torch.randn(VOCABULARY, HIDDEN, generator=generator))
    hidden = torch.randn(2, tokens // 2, HIDDEN, generator=generator).to(dtype).requires_grad_()
    labels = torch.randint(VOCABULARY, (2, tokens // 2), generator=generator)
    labels[:, :2] = IGNORED
    return hidden, output, labels


@pytest.fixture(autouse=True)
def _of_a_large_vocabulary(monkeypatch):
    monkeypatch.setattr(parts, "LOGITS_AT_ONCE", LOGIT_TOKENS_AT_ONCE["cpu"] * VOCABULARY)


def z_loss_of(weight: float) -> ZLoss:
    return ZLoss(weight, torch.zeros((), dtype=torch.float64))


def gradients(hidden, output, loss):
    found = torch.autograd.grad(loss, (hidden, output.weight))
    return [gradient.float() for gradient in found]


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-2)])
@pytest.mark.parametrize(
    "tokens", [10, LOGIT_TOKENS_AT_ONCE["cpu"], 2 * LOGIT_TOKENS_AT_ONCE["cpu"] + 6]
)
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
@pytest.mark.parametrize("tokens", [10, 2 * LOGIT_TOKENS_AT_ONCE["cpu"] + 6])
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
    hidden, output, labels = some_tokens(4 * LOGIT_TOKENS_AT_ONCE["cpu"])
    with LargestTensor() as largest:
        summed_loss(hidden, output, labels, z_loss=z_loss).backward()
    assert largest.numbers == LOGIT_TOKENS_AT_ONCE["cpu"] * VOCABULARY


MANY = 2 * LOGIT_TOKENS_AT_ONCE["cpu"] + 90
"""Tokens of three chunks."""


def plain(hidden, output, labels, *, temperature):
    """The same from whole logits."""
    scores = output(hidden)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32)) / temperature
    log_probs = scores.log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    of_labels = log_probs.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return torch.stack([of_labels, entropy.detach()]) * (labels >= 0)


def weighted_gradients(found, hidden, output):
    """Gradients of a sum in which each token has another factor, also below 0."""
    factors = torch.linspace(-1, 2, found[0].numel(), dtype=found.dtype).view_as(found[0])
    return torch.autograd.grad((found[0] * factors).sum(), (hidden, output.weight))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("tokens", [10, MANY])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        (torch.float64, {"rtol": 1e-10, "atol": 1e-12}),
        (torch.float32, {"rtol": 1e-5, "atol": 2e-5}),
        # Gradients of a bf16 weight are rounded to about three digits.
        (torch.bfloat16, {"rtol": 2e-2, "atol": 1e-1}),
    ],
)
def test_log_probs_entropies_and_gradients_equal_those_of_whole_logits(
    tokens, temperature, dtype, tolerance
):
    hidden, output, labels = some_tokens(tokens, dtype)
    found = token_log_probs(hidden, output, labels, temperature=temperature)
    expected = plain(hidden, output, labels, temperature=temperature)
    assert found.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
    exact = {"rtol": 1e-5, "atol": 1e-5} if dtype is torch.bfloat16 else tolerance
    torch.testing.assert_close(found, expected, **exact)
    torch.testing.assert_close(
        weighted_gradients(found, hidden, output),
        weighted_gradients(expected, hidden, output),
        **tolerance,
    )


def test_without_gradients_the_result_is_the_same():
    hidden, output, labels = some_tokens(MANY, torch.float32)
    found = token_log_probs(hidden, output, labels, temperature=0.5)
    with torch.no_grad():
        again = token_log_probs(hidden, output, labels, temperature=0.5)
    assert torch.equal(found, again)
    assert again.grad_fn is None


@pytest.mark.parametrize("ignored", ["some", "all"])
def test_ignored_labels_give_zeros_and_no_gradient(ignored):
    hidden, output, labels = some_tokens(20, torch.float32)
    if ignored == "all":
        labels[:] = IGNORED
    found = token_log_probs(hidden, output, labels, temperature=1.0)
    assert not found[:, labels < 0].any()
    assert (found[0] < 0).sum() == (found[1] > 0).sum() == (labels >= 0).sum()
    of_hidden, of_weight = weighted_gradients(found, hidden, output)
    assert not of_hidden[labels < 0].any()
    assert of_weight.any() == (ignored == "some")


def test_the_entropy_has_no_gradient():
    hidden, output, labels = some_tokens(20, torch.float32)
    found = token_log_probs(hidden, output, labels, temperature=1.0)
    assert found[1].sum() > 0
    for gradient in torch.autograd.grad(found[1].sum(), (hidden, output.weight)):
        assert not gradient.any()


def test_the_whole_logits_are_never_in_memory_and_only_inputs_are_saved():
    hidden, output, labels = some_tokens(4 * LOGIT_TOKENS_AT_ONCE["cpu"], torch.float32)
    saved: list[torch.Tensor] = []
    with (
        LargestTensor() as largest,
        torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor
        ),
    ):
        token_log_probs(hidden, output, labels, temperature=0.7)[0].sum().backward()
    assert largest.numbers == LOGIT_TOKENS_AT_ONCE["cpu"] * VOCABULARY
    # Hidden states, the weight, and a few numbers per token.
    assert sum(tensor.numel() for tensor in saved) < (
        hidden.numel() + output.weight.numel() + 6 * labels.numel()
    )


def test_a_decoder_returns_the_log_probs_of_its_labels(small_llama):
    torch.manual_seed(0)
    model = Decoder(small_llama.model, sequence_length=16)
    model.fill_buffers()
    tokens = torch.randint(64, (2, 16))
    labels = tokens.roll(-1, dims=1)
    labels[:, -1] = IGNORED
    expected = plain(model(tokens), nn.Identity(), labels, temperature=0.8)
    model.loss = partial(token_log_probs, temperature=0.8)
    torch.testing.assert_close(model(tokens, labels=labels), expected)
