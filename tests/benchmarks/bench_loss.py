"""Measures memory and processor time of the last projection with the cross entropy.

Also with a z-loss, and with the log-probability of each label, from which reinforcement learning
computes its loss. Compares whole logits with logits that are computed in chunks.

    python tests/benchmarks/bench_loss.py [TOKENS [VOCABULARY [HIDDEN]]]
"""

import argparse
import resource
import sys
import time

from harness import run_apart

WAYS = (
    "whole logits",
    "in chunks",
    "in chunks, z-loss",
    "log-probs, whole",
    "log-probs, chunks",
)
PASSES = 3


def measure(way: str, tokens: int, vocabulary: int, hidden: int) -> None:
    """Prints the cost of the loss and its gradients.

    These are the MiB that they add to this process at their peak, and processor seconds per pass.
    """
    import torch
    import torch.nn.functional as F

    from rampcli.models.linear import OutputProjection
    from rampcli.models.loss import ZLoss, summed_loss, token_log_probs
    from rampcli.models.parts import Linear

    torch.manual_seed(0)
    output = OutputProjection(
        Linear(inputs=hidden, outputs=vocabulary, has_bias=False, split="logits")
    )
    states, labels = (
        torch.randn(1, tokens, hidden, requires_grad=True),
        torch.randint(vocabulary, (1, tokens)),
    )
    torch.mm(states[0, :8], output.weight.t())  # makes the library allocate its own memory
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()

    def whole_cross_entropy() -> torch.Tensor:
        return F.cross_entropy(output(states).flatten(0, 1), labels.flatten(), reduction="sum")

    def whole_log_probs() -> torch.Tensor:
        log_probs = (output(states) / 0.7).log_softmax(-1)
        with torch.no_grad():
            torch.special.entr(log_probs.exp()).sum(-1)
        return log_probs.gather(-1, labels[..., None]).sum()

    compute = {
        "whole logits": whole_cross_entropy,
        "in chunks": lambda: summed_loss(states, output, labels),
        "in chunks, z-loss": lambda: summed_loss(
            states, output, labels, z_loss=ZLoss(1e-5, torch.zeros((), dtype=torch.float64))
        ),
        "log-probs, whole": whole_log_probs,
        "log-probs, chunks": lambda: token_log_probs(states, output, labels, temperature=0.7)[
            0
        ].sum(),
    }[way]
    for _ in range(PASSES):
        compute().backward()
        states.grad = output.weight.grad = None
    took = (time.process_time() - began) / PASSES
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, took)


def main() -> None:
    if sys.argv[1:2] and sys.argv[1] in WAYS:
        measure(sys.argv[1], *map(int, sys.argv[2:]))
        return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default in (("tokens", 4096), ("vocabulary", 128_256), ("hidden", 512)):
        parser.add_argument(name, nargs="?", type=int, default=default, metavar=name.upper())
    given = parser.parse_args()
    tokens, vocabulary, hidden = given.tokens, given.vocabulary, given.hidden
    mib = vocabulary * 4 / 2**20
    print(f"{tokens:,} tokens, vocabulary {vocabulary:,}, hidden {hidden:,}, fp32")
    print(f"logits: {tokens * mib:,.0f} MiB; gradient of the weight: {hidden * mib:,.0f} MiB\n")
    print("way                 peak MiB   CPU s/pass")
    for way in WAYS:
        peak, took = run_apart(__file__, way, tokens, vocabulary, hidden)
        print(f"{way:18} {peak:9,.0f} {took:14.2f}")


if __name__ == "__main__":
    main()
