import pytest
import torch
import torch.nn.functional as F

from models.projections import VOCABULARY, LargestTensor, some_tokens
from rampcli.data.corpus import IGNORED
from rampcli.models import parts
from rampcli.models.loss import summed_loss
from rampcli.models.parts import TOKENS_AT_ONCE


@pytest.fixture(autouse=True)
def _of_a_large_vocabulary(monkeypatch):
    monkeypatch.setattr(parts, "LOGITS_AT_ONCE", TOKENS_AT_ONCE["cpu"] * VOCABULARY)


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


def test_ignored_labels_give_no_loss_and_no_gradient():
    hidden, output, labels = some_tokens(20)
    labels[:] = IGNORED
    loss = summed_loss(hidden, output, labels)
    assert loss.item() == 0
    assert not any(gradient.any() for gradient in gradients(hidden, output, loss))


def test_the_whole_logits_are_never_in_memory_at_once():
    hidden, output, labels = some_tokens(4 * TOKENS_AT_ONCE["cpu"])
    with LargestTensor() as largest:
        summed_loss(hidden, output, labels).backward()
    assert largest.numbers == TOKENS_AT_ONCE["cpu"] * VOCABULARY
