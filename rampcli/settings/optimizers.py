"""Optimisers by name: the function that builds each, and the memory that it needs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil

MAX_STACK_ELEMENTS = 2**22
"""Maximum number of elements in one stack of matrices. A larger matrix is taken alone."""
BF16 = 2


def muon_work_bytes(matrices: Mapping[tuple[int, ...], int], shards: int, replicas: int) -> int:
    """Returns `Optimizer.work_bytes` of Muon, whose ranks divide the matrices in stacks."""
    work = []
    for (rows, columns), alike in matrices.items():
        ranks, matrix = shards * replicas, rows * columns
        owned = min(ceil(alike / ranks), stack_size(matrix))
        # The stack, two iterates, and two products of an iterate by itself.
        computing = owned * (3 * matrix + 2 * min(rows, columns) ** 2)
        # This rank's shards of all stacks, beside its own stack or the change of a weight in fp32.
        returned = min(alike, owned * ranks) * matrix // shards if replicas > 1 else 0
        returning = returned + max(owned * matrix, 2 * matrix // shards)
        work.append(BF16 * max(computing, returning))
    return max(work, default=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimizer:
    """An optimiser.

    Attributes:
        builder: module and name of the function that builds it from this rank's parts of a model
            and the section `optim`, as `rampcli.train.optimizers.build_adamw` does.
        settings: fields of the section `optim` that it uses, beside those of the learning rate.
        states: fp32 numbers that it keeps for each parameter.
        matrix_states: the same for the matrices of the layers.
        work_bytes: returns the bytes that a step computes with, beside weights, gradients and
            states. Takes the number of the layers' matrices that a rank has a part of, by their
            whole shape, the ranks that share a copy of them, and the number of copies.
    """

    builder: str
    settings: tuple[str, ...]
    states: int
    matrix_states: int
    work_bytes: Callable[[Mapping[tuple[int, ...], int], int, int], int] = lambda *_: 0


def stack_size(elements: int) -> int:
    """Returns how many matrices with this number of elements Muon orthogonalises at once."""
    return max(1, MAX_STACK_ELEMENTS // elements)


ADAMW_SETTINGS = ("weight_decay", "beta1", "beta2", "eps")
OPTIMIZERS = {
    "adamw": Optimizer(
        builder="rampcli.train.optimizers:build_adamw",
        settings=ADAMW_SETTINGS,
        states=2,
        matrix_states=2,
    ),
    "muon": Optimizer(
        builder="rampcli.train.optimizers:build_muon",
        settings=(*ADAMW_SETTINGS, "muon_momentum", "muon_iterations"),
        states=2,
        matrix_states=1,
        work_bytes=muon_work_bytes,
    ),
}
"""Optimisers by `optim.optimizer`.

To add an optimiser: an entry here, a function in `rampcli/train/optimizers.py`, and its settings in
`rampcli/settings/optim.py:OptimConfig`.
"""


def optimizer_of(name: str) -> Optimizer:
    """Returns an optimiser. One that a user has registered is taken to need as much as AdamW."""
    return OPTIMIZERS.get(name, OPTIMIZERS["adamw"])
