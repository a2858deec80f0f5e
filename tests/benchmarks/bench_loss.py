"""Memory and processor time of the last projection and the cross entropy: whole logits against pieces of them.

python tests/benchmarks/bench_loss.py [TOKENS [VOCABULARY [HIDDEN]]]
"""

import resource
import subprocess
import sys
import time

WAYS = ("whole logits", "in pieces")
PASSES = 3


def measure(way: str, tokens: int, vocabulary: int, hidden: int) -> None:
    """Print the memory (MiB) that the loss and its gradients add to this process at their peak, and processor seconds a pass."""
    import torch
    import torch.nn.functional as F

    from rampcli.models.loss import summed_loss

    torch.manual_seed(0)
    output = torch.nn.Linear(hidden, vocabulary, bias=False)
    states, labels = (
        torch.randn(1, tokens, hidden, requires_grad=True),
        torch.randint(vocabulary, (1, tokens)),
    )
    torch.mm(states[0, :8], output.weight.t())  # the library has its own memory then
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    for _ in range(PASSES):
        if way == "in pieces":
            loss = summed_loss(states, output, labels)
        else:
            loss = F.cross_entropy(output(states).flatten(0, 1), labels.flatten(), reduction="sum")
        loss.backward()
        states.grad = output.weight.grad = None
    took = (time.process_time() - began) / PASSES
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, took)


def main() -> None:
    if sys.argv[1:2] and sys.argv[1] in WAYS:
        measure(sys.argv[1], *map(int, sys.argv[2:]))
        return
    tokens, vocabulary, hidden = [int(word) for word in sys.argv[1:]] + [4096, 128_256, 512][
        len(sys.argv) - 1 :
    ]
    mib = vocabulary * 4 / 2**20
    print(
        f"{tokens:,} tokens, vocabulary {vocabulary:,}, hidden {hidden:,}, fp32: logits of {tokens * mib:,.0f} MiB,"
    )
    print(
        f"and the gradient of the weight, which both ways have to hold, of {hidden * mib:,.0f} MiB\n"
    )
    print("way            peak MiB   CPU s a pass")
    for way in WAYS:
        words = [sys.executable, __file__, way, str(tokens), str(vocabulary), str(hidden)]
        peak, took = map(
            float, subprocess.run(words, text=True, capture_output=True, check=True).stdout.split()
        )
        print(f"{way:13} {peak:9,.0f} {took:14.2f}")


if __name__ == "__main__":
    main()
