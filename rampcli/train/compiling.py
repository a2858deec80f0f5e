"""Compiling the layers before the first step, so that no step's time counts it."""

from contextlib import suppress

import torch
import torch.distributed as dist

from rampcli.batch.plan import BatchPlan
from rampcli.config.schema import Config
from rampcli.data.loader import MicroBatch
from rampcli.errors import RampcliError
from rampcli.train.passes import Passes


def set_up_compiler() -> None:
    """Have torch.compile import and set up what it needs, by having it compile next to nothing."""
    with suppress(*_failures()):  # `compile_passes` will fail too, and say why
        torch.compile(lambda x: 2 * x, dynamic=False)(
            torch.ones(1, requires_grad=True)
        ).sum().backward()


def compile_passes(passes: Passes, config: Config, plan: BatchPlan) -> None:
    """Run the passes that training and validation take, on tokens that count for nothing; all ranks do it together.

    Raises:
        RampcliError: this machine cannot compile.
    """
    tokens = torch.zeros(
        plan.micro_batch_size, config.data.sequence_length, dtype=torch.int64, device=passes.device
    )
    micro_batch = MicroBatch(tokens, tokens, tokens if config.data.document_mask else None)
    try:
        passes.forward_backward(
            [micro_batch] * (plan.accumulate_grad_batches if passes.pipeline else 1), scale=0.0
        )
        if config.trainer.val_samples:
            passes.forward([micro_batch] * passes.at_a_time)
    except _failures() as error:
        raise RampcliError(
            f"torch.compile fails on this machine: {error}",
            remedy="a C++ compiler (`apt install g++`), room in TORCHINDUCTOR_CACHE_DIR, or trainer.compile=false",
        ) from error
    for part in passes.parts:
        part.zero_grad()
    dist.barrier()


def _failures() -> tuple[type[Exception], ...]:
    """What is raised where this machine cannot compile. It takes seconds to import, for which runs that do not compile need not wait."""
    from torch._dynamo.exc import BackendCompilerFailed
    from torch._inductor.exc import InductorError

    return BackendCompilerFailed, InductorError
