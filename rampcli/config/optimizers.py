"""Optimisers by name: the function that builds each, and the memory that it needs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

MAX_STACK_ELEMENTS = 2**22
"""Maximum number of elements in one stack of matrices. A larger matrix is taken alone."""
BF16 = 2


def muon_work_bytes(matrices: Mapping[tuple[int, ...], int]) -> int:
    """Returns `Optimizer.work_bytes` of Muon, which orthogonalises stacks of whole matrices."""
    work = []
    for (rows, columns), alike in matrices.items():
        # The updates alone and stacked, two iterates, and two products of an iterate by itself.
        numbers = 4 * rows * columns + 2 * min(rows, columns) ** 2
        work.append(BF16 * min(alike, stack_size(rows * columns)) * numbers)
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
            states. Takes the number of the layers' matrices on a rank, by their whole shape.
    """

    builder: str
    settings: tuple[str, ...]
    states: int
    matrix_states: int
    work_bytes: Callable[[Mapping[tuple[int, ...], int]], int] = lambda _: 0


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
        settings=(*ADAMW_SETTINGS, "muon_momentum"),
        states=2,
        matrix_states=1,
        work_bytes=muon_work_bytes,
    ),
}
"""Optimisers by `optim.optimizer`."""


def optimizer_of(name: str) -> Optimizer:
    """Returns an optimiser. One that a user has registered is taken to need as much as AdamW."""
    return OPTIMIZERS.get(name, OPTIMIZERS["adamw"])
