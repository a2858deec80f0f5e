"""Pipeline parallelism: splits the layers into stages and runs 1F1B (arXiv 2104.04473)."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from rampcli.models.decoder import Decoder, build_decoder
from rampcli.parallel.mesh import local_part
from rampcli.settings.config import Config


def layers_of_rank(num_layers: int, *, ranks: int, rank: int, parts: int) -> list[range]:
    """Returns a pipeline rank's layers, one range for each of its `parts` stages.

    Between two stages of a rank lie the stages of all other ranks (interleaved schedule).
    """
    size = num_layers // (ranks * parts)
    firsts = [(part * ranks + rank) * size for part in range(parts)]
    return [range(first, first + size) for first in firsts]


def build_stages(config: Config, *, rank: int) -> list[Decoder]:
    """Returns the stages of a pipeline rank on the meta device, as `build_decoder` does."""
    layers_of_stages = layers_of_rank(
        config.model.num_layers,
        ranks=config.parallel.pipeline_parallel_size,
        rank=rank,
        parts=config.parallel.virtual_pipeline_parallel_size,
    )
    length = config.data.sequence_length
    return [
        build_decoder(config.model, sequence_length=length, layers=layers)
        for layers in layers_of_stages
    ]


class Pipeline:
    """Sends micro batches through the stages.

    Gradients are reduced over the data-parallel ranks after the last micro batch.

    Args:
        parts: this rank's stages of the model, as `layers_of_rank` divides it.
        mesh: the pipeline axis.
        scale_loss: scales the last stage's loss before the backward pass.
        after_trial: called after passes on arbitrary numbers, which come before others in the first
            run with a number of micro batches. Nothing that they have added up counts.
    """

    def __init__(
        self,
        parts: Sequence[nn.Module],
        mesh: DeviceMesh,
        device: torch.device,
        scale_loss: Callable[[Tensor], Tensor],
        after_trial: Callable[[], None],
    ) -> None:
        self.parts = parts
        self.mesh = mesh
        self.device = device
        self.scale_loss = scale_loss
        self.after_trial = after_trial
        self.is_last = mesh.get_local_rank() == mesh.size() - 1
        self._schedules: dict[tuple[bool, int, torch.Size], Any] = {}

    def run(
        self,
        tokens: Tensor,
        labels: Tensor,
        positions: Tensor | None,
        *,
        micro_batches: int,
        backward: bool,
    ) -> Tensor:
        """Runs all micro batches forward and, with `backward`, backward.

        Args:
            tokens: int64 [micro_batches x samples, sequence].
            labels: same shape.
            positions: same shape: positions within documents; None without a document mask.
            micro_batches: number of micro batches that the rows are split into.

        Returns:
            The sum of the losses on the last stage, and 0 on the others.
        """
        schedule = self._schedule(tokens, micro_batches=micro_batches, backward=backward)
        losses: list[Tensor] = []
        inputs = (tokens,) if self.mesh.get_local_rank() == 0 else ()
        run = schedule.step if backward else schedule.eval
        keywords = {} if positions is None else {"positions": positions}
        if self.is_last:
            # The last stage returns the loss; the schedule treats that as the stage's output.
            keywords["labels"] = labels
        run(
            *inputs,
            target=labels if self.is_last else None,
            losses=losses,
            return_outputs=False,
            **keywords,
        )
        return torch.stack(losses).detach().sum() if losses else torch.zeros((), device=self.device)

    def add_gradient_of_other_end(self, weight: nn.Parameter) -> None:
        """Sums the gradients of a weight that the first and the last stage share.

        Both stages call this, and both then hold the same sum.
        """
        assert weight.grad is not None
        gradient = local_part(weight.grad)
        received, group = torch.empty_like(gradient), self.mesh.get_group()
        other = dist.get_global_rank(group, self.mesh.size() - 1 - self.mesh.get_local_rank())
        exchange = [
            dist.P2POp(dist.isend, gradient.contiguous(), other, group),
            dist.P2POp(dist.irecv, received, other, group),
        ]
        for work in dist.batch_isend_irecv(exchange):
            work.wait()
        gradient.add_(received)

    def _schedule(self, tokens: Tensor, *, micro_batches: int, backward: bool) -> Any:
        """Returns the schedule for this number and shape of micro batches, and keeps it."""
        # Takes more than a second to import, and runs without a pipeline do not need it.
        from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe

        from rampcli.parallel.pipeline_stages import InterleavedSchedule, LazyPipelineStage

        key = (backward, micro_batches, tokens.shape)
        if key not in self._schedules:
            ranks, rank = self.mesh.size(), self.mesh.get_local_rank()
            stages = [
                LazyPipelineStage(
                    part,
                    index * ranks + rank,
                    ranks * len(self.parts),
                    self.device,
                    group=self.mesh.get_group(),
                    after_trial=self.after_trial,
                )
                for index, part in enumerate(self.parts)
            ]
            options: dict[str, Any] = {
                "n_microbatches": micro_batches,
                "loss_fn": lambda output, _labels: self.scale_loss(output),
                "scale_grads": False,
            }
            if len(stages) > 1:
                self._schedules[key] = InterleavedSchedule(stages, **options)
            elif micro_batches < ranks:  # 1F1B never reaches its steady state and equals GPipe
                self._schedules[key] = ScheduleGPipe(stages[0], **options)
            else:
                self._schedules[key] = Schedule1F1B(stages[0], **options)
        return self._schedules[key]
