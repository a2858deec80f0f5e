"""Tokens, an output projection, and the size of what is computed with them."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rampcli.data.corpus import IGNORED
from rampcli.models.linear import OutputProjection
from rampcli.models.parts import Linear

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
