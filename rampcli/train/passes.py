"""Forward and backward passes over micro batches, whatever the mesh."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rampcli.config.choices import AccumulateReduce
from rampcli.config.schema import Config
from rampcli.data.corpus import IGNORED
from rampcli.data.loader import MicroBatch
from rampcli.models.decoder import Decoder
from rampcli.parallel.context import pieces_of
from rampcli.parallel.fsdp import free_gathered_weights, reduce_gradients_on
from rampcli.parallel.mesh import CONTEXT, PIPELINE, TENSOR, Meshes
from rampcli.parallel.pipeline import Pipeline
from rampcli.parallel.tensor import loss_over


class Passes:
    """What a rank does with its micro batches.

    Losses are in nats, summed over valid tokens. Where several ranks know the same loss, one of them counts it and the others return 0.
    """

    def __init__(
        self, config: Config, parts: Sequence[Decoder], meshes: Meshes, device: torch.device
    ) -> None:
        self.parts = parts
        self.meshes = meshes
        self.device = device
        self.tensor, self.context = (
            meshes.data[TENSOR],
            meshes.data[CONTEXT],
        )  # to look an axis up makes a mesh of it, each time
        self.reduces_each = config.trainer.accumulate_reduce is AccumulateReduce.each
        self.pieces = config.parallel.num_pipeline_microbatches or 1
        self.pipeline: Pipeline | None = None
        self.scale = 1.0
        if meshes.size(PIPELINE) > 1:
            self.pipeline = Pipeline(parts, meshes.data[PIPELINE], device, self._scaled)
        self.at_a_time = meshes.size(PIPELINE)
        """Micro batches that are best run forward together."""
        self.counts = meshes.rank(TENSOR) == 0 and parts[-1].is_last

    def forward_backward(
        self,
        micro_batches: Sequence[MicroBatch],
        *,
        scale: float,
        between: Callable[[], None] = lambda: None,
    ) -> Tensor:
        """Add the gradient of the summed loss, times `scale`, to that of the parameters; returns that loss, a scalar.

        `between` is called between micro batches; a pipeline, whose schedule has all of them under way at once, does not call it.
        """
        self.scale = scale
        with loss_over(
            self.tensor
        ):  # the backward pass of a loss that is sharded by vocabulary belongs in there too
            if self.pipeline is not None:
                total = self.pipeline.forward_backward(
                    *self._together(micro_batches), micro_batches=len(micro_batches) * self.pieces
                )
                for part in self.parts:
                    if (tied := part.weight_at_both_ends()) is not None:
                        self.pipeline.add_gradient_of_other_end(tied)
                return self._once(total)
            (model,) = self.parts
            total = torch.zeros((), device=self.device)
            for index, micro_batch in enumerate(micro_batches):
                if index > 0:
                    between()
                reduce_gradients_on(
                    model, last_micro_batch=index == len(micro_batches) - 1, each=self.reduces_each
                )
                tokens, labels, positions = self._together([micro_batch])
                loss = self._scaled(model(tokens, positions, labels=labels))
                loss.backward()  # type: ignore[no-untyped-call]
                total += loss.detach()
        return self._once(total)

    @torch.no_grad()
    def forward(self, micro_batches: Sequence[MicroBatch]) -> Tensor:
        """The summed loss, a scalar."""
        self.scale = 1.0
        tokens, labels, positions = self._together(micro_batches)
        with loss_over(self.tensor):
            if self.pipeline is not None:
                loss = self.pipeline.forward(
                    tokens, labels, positions, micro_batches=len(micro_batches) * self.pieces
                )
            else:
                (model,) = self.parts
                loss = model(tokens, positions, labels=labels)
        for part in self.parts:
            free_gathered_weights(part)
        return self._once(loss)

    def valid_tokens(self, micro_batches: Sequence[MicroBatch]) -> int:
        """The tokens that these losses are summed over, as far as this rank counts them."""
        return int((self._together(micro_batches)[1] != IGNORED).sum()) if self.counts else 0

    def _together(
        self, micro_batches: Sequence[MicroBatch]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """This rank's pieces of the tokens, labels and positions of micro batches, one after another."""

        def mine(parts: list[Tensor]) -> Tensor:
            return pieces_of(torch.cat(parts), self.context, dim=1)

        positions = [batch.positions for batch in micro_batches if batch.positions is not None]
        return (
            mine([batch.tokens for batch in micro_batches]),
            mine([batch.labels for batch in micro_batches]),
            mine(positions) if positions else None,
        )

    def _scaled(self, loss: Tensor) -> Tensor:
        return loss * self.scale

    def _once(self, loss: Tensor) -> Tensor:
        return loss if self.counts else torch.zeros_like(loss)
