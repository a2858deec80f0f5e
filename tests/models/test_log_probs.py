from functools import partial

import pytest
import torch
from torch import nn

from models.projections import VOCABULARY, LargestTensor, some_tokens
from rampcli.data.corpus import IGNORED
from rampcli.models import parts
from rampcli.models.decoder import Decoder
from rampcli.models.log_probs import token_log_probs
from rampcli.models.parts import TOKENS_AT_ONCE

MANY = 2 * TOKENS_AT_ONCE["cpu"] + 90
"""Tokens of three chunks."""


@pytest.fixture(autouse=True)
def _of_a_large_vocabulary(monkeypatch):
    monkeypatch.setattr(parts, "LOGITS_AT_ONCE", TOKENS_AT_ONCE["cpu"] * VOCABULARY)


def plain(hidden, output, labels, *, temperature):
    """The same from whole logits."""
    scores = output(hidden)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32)) / temperature
    log_probs = scores.log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    of_labels = log_probs.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return torch.stack([of_labels, entropy.detach()]) * (labels >= 0)


def gradients(found, hidden, output):
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
        gradients(found, hidden, output), gradients(expected, hidden, output), **tolerance
    )


def test_without_gradients_the_result_is_the_same():
    hidden, output, labels = some_tokens(MANY, torch.float32)
    found = token_log_probs(hidden, output, labels, temperature=0.5)
    with torch.no_grad():
        again = token_log_probs(hidden, output, labels, temperature=0.5)
    assert torch.equal(found, again)
    assert again.grad_fn is None


def test_the_size_of_the_chunks_changes_nothing_but_rounding(monkeypatch):
    hidden, output, labels = some_tokens(MANY, torch.float64)
    chunked = token_log_probs(hidden, output, labels, temperature=0.7)
    expected = (chunked, *gradients(chunked, hidden, output))
    monkeypatch.setattr(parts, "LOGITS_AT_ONCE", MANY * VOCABULARY)
    whole = token_log_probs(hidden, output, labels, temperature=0.7)
    torch.testing.assert_close((whole, *gradients(whole, hidden, output)), expected)


@pytest.mark.parametrize("ignored", ["some", "all"])
def test_ignored_labels_give_zeros_and_no_gradient(ignored):
    hidden, output, labels = some_tokens(20, torch.float32)
    if ignored == "all":
        labels[:] = IGNORED
    found = token_log_probs(hidden, output, labels, temperature=1.0)
    assert not found[:, labels < 0].any()
    assert (found[0] < 0).sum() == (found[1] > 0).sum() == (labels >= 0).sum()
    of_hidden, of_weight = gradients(found, hidden, output)
    assert not of_hidden[labels < 0].any()
    assert of_weight.any() == (ignored == "some")


def test_the_entropy_has_no_gradient():
    hidden, output, labels = some_tokens(20, torch.float32)
    found = token_log_probs(hidden, output, labels, temperature=1.0)
    assert found[1].sum() > 0
    for gradient in torch.autograd.grad(found[1].sum(), (hidden, output.weight)):
        assert not gradient.any()


def test_the_whole_logits_are_never_in_memory_and_only_inputs_are_saved():
    hidden, output, labels = some_tokens(4 * TOKENS_AT_ONCE["cpu"], torch.float32)
    saved: list[torch.Tensor] = []
    with (
        LargestTensor() as largest,
        torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor
        ),
    ):
        token_log_probs(hidden, output, labels, temperature=0.7)[0].sum().backward()
    assert largest.numbers == TOKENS_AT_ONCE["cpu"] * VOCABULARY
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
