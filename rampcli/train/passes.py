"""Forward and backward passes over micro batches, on any mesh."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from rampcli.data.corpus import IGNORED
from rampcli.data.loader import MicroBatch
from rampcli.machine.activity import waiting
from rampcli.models.decoder import Decoder
from rampcli.models.loss import ZLoss, summed_loss
from rampcli.parallel.context import pieces_of
from rampcli.parallel.fsdp import free_gathered_weights, set_gradient_reduction
from rampcli.parallel.mesh import CONTEXT, PIPELINE, TENSOR, Meshes
from rampcli.parallel.pipeline import Pipeline
from rampcli.parallel.tensor import loss_over, summed_loss_of_shards
from rampcli.settings.config import Config


class Passes:
    """Forward and backward passes of this rank.

    Losses are in nats, summed over valid tokens. If several ranks compute the same loss, one of
    them returns it and the others return 0, so that a sum over ranks counts it once.

    Attributes:
        forward_micro_batches: micro batches that a forward pass should take at once, to fill a
            pipeline.
        returns_loss: whether this rank returns the loss, rather than 0.
        z_loss: adds the z-loss to what is differentiated, and sums it up over the passes of the
            last `forward_backward`. None without it.
        sums_over_ranks: whether ranks sum their losses, gradient norms and token counts.
        reduces_over_replicas: whether gradients are reduced over replicas, which a pipeline always
            does. Both attributes only change to measure how long ranks wait for each other.
    """

    def __init__(
        self, config: Config, parts: Sequence[Decoder], meshes: Meshes, device: torch.device
    ) -> None:
        self.parts = parts
        self.meshes = meshes
        self.device = device
        # Looking up an axis builds a new mesh each time.
        self.tensor, self.context = meshes.data[TENSOR], meshes.data[CONTEXT]
        self.reduces_each = config.trainer.accumulate_reduce == "each"
        self.pieces = config.parallel.num_pipeline_microbatches or 1
        self.pipeline: Pipeline | None = None
        self.scale: float | Tensor = 1.0
        if meshes.size(PIPELINE) > 1:
            self.pipeline = Pipeline(
                parts, meshes.data[PIPELINE], device, self._scale, self._forget_z_loss
            )
        self.forward_micro_batches = meshes.size(PIPELINE)
        self.returns_loss = meshes.rank(TENSOR) == 0 and parts[-1].is_last
        self.z_loss: ZLoss | None = None
        if config.loss.z_weight is not None:
            none_yet = torch.zeros((), dtype=torch.float64, device=device)
            self.z_loss = ZLoss(config.loss.z_weight, none_yet)
            loss = summed_loss if meshes.size(TENSOR) == 1 else summed_loss_of_shards
            for part in parts:
                part.loss = partial(loss, z_loss=self.z_loss)
        self.sums_over_ranks = True
        self.reduces_over_replicas = True

    def forward_backward(
        self,
        micro_batches: Iterable[MicroBatch],
        *,
        scale: float,
        count: int | None = None,
        between: Callable[[], None] = lambda: None,
    ) -> Tensor:
        """Adds the gradient of the summed loss times `scale` to `.grad`, and returns that loss.

        Args:
            micro_batches: the micro batches. They may arrive while earlier ones are computed.
            scale: factor of the gradient.
            count: number of micro batches, if they are not all there yet.
            between: called between micro batches, except in a pipeline, which has all of them in
                progress at once.
        """
        self.scale = scale
        self._forget_z_loss()
        if count is None:
            micro_batches = list(micro_batches)
            count = len(micro_batches)
        # A loss that is sharded over the vocabulary needs this context in its backward pass, too.
        with loss_over(self.tensor):
            if self.pipeline is not None:
                total = self.pipeline.run(
                    *self._local_inputs(list(micro_batches)),
                    micro_batches=count * self.pieces,
                    backward=True,
                )
                for part in self.parts:
                    if (tied := part.weight_tied_across_stages()) is not None:
                        self.pipeline.add_gradient_of_other_end(tied)
                return self._once_per_loss(total)
            (model,) = self.parts
            total = torch.zeros((), device=self.device)
            for index, micro_batch in enumerate(micro_batches):
                if index > 0:
                    between()
                set_gradient_reduction(
                    model,
                    last_micro_batch=index == count - 1,
                    each=self.reduces_each,
                    over_replicas=self.reduces_over_replicas,
                )
                loss = self._scale(self.loss_of(micro_batch))
                loss.backward()  # type: ignore[no-untyped-call]
                total += loss.detach()
        return self._once_per_loss(total)

    def loss_of(self, micro_batch: MicroBatch) -> Tensor:
        """Returns the summed loss of a micro batch, a scalar, on a model that is not piped.

        A subclass may train on another loss.
        """
        (model,) = self.parts
        tokens, labels, positions = self._local_inputs([micro_batch])
        loss: Tensor = model(tokens, positions, labels=labels)
        return loss

    @torch.no_grad()
    def forward(
        self, micro_batches: Sequence[MicroBatch], bytes_of_tokens: Tensor | None = None
    ) -> Tensor:
        """Returns the summed loss, its valid tokens and the bytes of their text, float64 [3].

        The bytes are 0 if `bytes_of_tokens`, int32 [vocabulary], is None.
        """
        self.scale = 1.0
        tokens, labels, positions = self._local_inputs(micro_batches)
        count = len(micro_batches) * self.pieces
        with loss_over(self.tensor):
            if self.pipeline is not None:
                loss = self.pipeline.run(
                    tokens, labels, positions, micro_batches=count, backward=False
                )
            else:
                (model,) = self.parts
                loss = model(tokens, positions, labels=labels)
        for part in self.parts:
            free_gathered_weights(part)
        sums = torch.zeros(3, dtype=torch.float64, device=self.device)
        if self.returns_loss:
            is_valid = labels != IGNORED
            sums[0], sums[1] = loss, is_valid.sum()
            if bytes_of_tokens is not None:
                sums[2] = (bytes_of_tokens[labels.clamp(min=0)] * is_valid).sum()
        return sums

    def total(self, numbers: Tensor) -> Tensor:
        """Returns the sum of each number over all ranks, in float64. Every rank calls this.

        Does not wait for the device: `numbers` and the result are there.
        """
        totals = numbers.double()
        if self.sums_over_ranks:
            with waiting:
                dist.all_reduce(totals)
        return totals

    def sum_over_ranks(self, numbers: Tensor | Sequence[float]) -> list[float]:
        """Returns the sum of each number over all ranks, in float64. Every rank calls this.

        Waits for the device if `numbers` are there, else only for the other ranks' processes.
        """
        if isinstance(numbers, Tensor):
            totals = self.total(numbers)
            with waiting:
                sums: list[float] = totals.tolist()
            return sums
        totals = torch.tensor(numbers, dtype=torch.float64)  # on the host
        if self.sums_over_ranks:
            with waiting:
                dist.all_reduce(totals, group=self.meshes.hosts)
        return totals.tolist()

    def _local_inputs(
        self, micro_batches: Sequence[MicroBatch]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Returns tokens, labels and positions of this rank's part of each sequence, concatenated.

        Each is int64 [samples, sequence over context ranks]. Positions are None unless documents
        have their own.
        """

        def concatenate(tensors: list[Tensor]) -> Tensor:
            return pieces_of(torch.cat(tensors), self.context, dim=1)

        positions = [batch.positions for batch in micro_batches if batch.positions is not None]
        return (
            concatenate([batch.tokens for batch in micro_batches]),
            concatenate([batch.labels for batch in micro_batches]),
            concatenate(positions) if positions else None,
        )

    def _scale(self, loss: Tensor) -> Tensor:
        return loss * self.scale

    def _forget_z_loss(self) -> None:
        if self.z_loss is not None:
            self.z_loss.sum.zero_()

    def _once_per_loss(self, loss: Tensor) -> Tensor:
        """Returns the loss on the one rank that counts it, and 0 on the others that compute it."""
        return loss if self.returns_loss else torch.zeros_like(loss)
