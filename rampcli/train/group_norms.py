"""Squared norms of the gradients of single micro batches, for the noise scale of the gradient."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import starmap

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Placement

from rampcli.batch.noise_scale import groups_per_step
from rampcli.batch.plan import BatchPlan
from rampcli.data.corpus import IGNORED
from rampcli.data.loader import MicroBatch
from rampcli.models.decoder import Decoder
from rampcli.parallel.fsdp import weights_of_passes
from rampcli.parallel.mesh import CONTEXT, DATA, PIPELINE, Meshes, is_first_copy


class GroupNorms:
    """Sums the squared norms of the gradients of micro batches, on any mesh.

    A hook on each weight gets the gradient of a backward pass before it is added to those of
    earlier passes or reduced over ranks. So a step takes neither more memory nor other reductions.

    Args:
        parts: this rank's parts of the model. Every rank calls this.
        pieces: parts of a micro batch that pass through a pipeline.
    """

    def __init__(self, parts: Sequence[Decoder], meshes: Meshes, *, pieces: int) -> None:
        self.meshes = meshes
        self.pieces = pieces if meshes.size(PIPELINE) > 1 else None
        self._norms: list[Tensor] | None = None
        context = meshes.data[CONTEXT]
        self._context = context.get_group() if context.size() > 1 else None
        # A hook that held its weight would keep it alive for ever.
        for part in parts:
            for weight in weights_of_passes(part):
                is_sharded = isinstance(weight, DTensor)
                counts = meshes.rank(CONTEXT) == 0 and (not is_sharded or is_first_copy(weight))
                placements = weight.placements if isinstance(weight, DTensor) else ()
                weight.register_hook(partial(self._add, placements, counts))  # type: ignore[no-untyped-call]

    def measures(self, batch_plan: BatchPlan) -> bool:
        """Returns whether steps of this split have groups to compare."""
        return (
            groups_per_step(
                data_parallel_size=batch_plan.data_parallel_size,
                accumulate_grad_batches=batch_plan.accumulate_grad_batches,
                micro_batch_size=batch_plan.micro_batch_size,
                pieces=self.pieces,
            )
            > 1
        )

    @contextmanager
    def measuring(self, batch: Sequence[MicroBatch]) -> Iterator[Sequence[MicroBatch]]:
        """Notes the norms of the backward passes in the block. Yields the micro batches for them.

        They are the micro batches of this rank, or the halves of the only one of a step. Layers are
        compiled for whole micro batches, so they compute halves without that code.
        """
        is_only = self.pieces is None and self.meshes.size(DATA) * len(batch) == 1
        self._norms = []
        try:
            with torch.compiler.set_stance("force_eager") if is_only else nullcontext():
                yield halves_of(*batch) if is_only else batch
        finally:
            self._norms = None

    def addends(self, micro_batches: Sequence[MicroBatch], *, global_tokens: int) -> list[Tensor]:
        """Returns this rank's addends to `groups_sq` and `shares_sq` of `noise_of`.

        They are float64 scalars. Call this in the block of `measuring`, after the passes over these
        micro batches.
        """
        assert self._norms is not None
        labels = [(batch.labels != IGNORED).view(self.pieces or 1, -1) for batch in micro_batches]
        tokens = torch.cat([valid.sum(dim=1) for valid in labels]).double()
        shares = tokens.square().sum() / max(1, global_tokens) ** 2
        squares = torch.stack([*self._norms, shares.new_zeros((), dtype=torch.float32)]).double()
        # The loss was multiplied by this number, because ranks average their gradients.
        groups = squares.square().sum() / self.meshes.gradient_ranks**2
        return [groups, shares * self.meshes.counts_samples]

    def _add(self, placements: Sequence[Placement], counts: bool, gradient: Tensor) -> None:
        """Notes the norm of a weight's gradient.

        Args:
            placements: how tensor ranks share the weight.
            counts: whether this is the first rank with this part of the weight and these samples.
        """
        if self._norms is None:
            return
        if isinstance(gradient, DTensor):  # ranks may hold addends of the gradient
            gradient = gradient.redistribute(placements=placements).to_local()
        if self._context is not None:  # whose ranks each have a part of every sequence
            gradient = gradient.to(torch.float32, copy=True)
            dist.all_reduce(gradient, group=self._context)
        if counts:
            self._norms.append(torch.linalg.vector_norm(gradient, dtype=torch.float32))


def halves_of(batch: MicroBatch) -> list[MicroBatch]:
    """Returns the two halves of a micro batch, the first of which may have a sample more."""
    planes = (batch.tokens, batch.labels, batch.positions)
    parts = [plane.tensor_split(2) for plane in planes if plane is not None]
    return list(starmap(MicroBatch, zip(*parts, strict=True)))
