"""Compiles the layers before the first step, so that no step's time includes compilation."""

from contextlib import suppress

import torch
import torch.distributed as dist

from rampcli.activity import waiting
from rampcli.batch.plan import BatchPlan
from rampcli.config.schema import Config
from rampcli.data.loader import MicroBatch
from rampcli.errors import RampcliError
from rampcli.train.passes import Passes


def set_up_compiler() -> None:
    """Makes torch.compile import what it needs, by compiling a trivial function.

    Ignores failures: `compile_passes` fails too if this machine cannot compile, and reports why.
    """
    with suppress(*_failures()):
        torch.compile(lambda x: 2 * x, dynamic=False)(
            torch.ones(1, requires_grad=True)
        ).sum().backward()


def compile_passes(passes: Passes, config: Config, split: BatchPlan) -> None:
    """Runs the passes of training and validation once, without effect. Every rank calls this.

    Drops the code that was compiled for another micro batch size: torch.compile stops compiling a
    layer after eight versions.

    Raises:
        RampcliError: this machine cannot compile.
    """
    tokens = torch.zeros(
        split.micro_batch_size, config.data.sequence_length, dtype=torch.int64, device=passes.device
    )
    micro_batch = MicroBatch(tokens, tokens, tokens if config.data.document_mask else None)
    try:
        torch.compiler.reset()
        passes.forward_backward(
            [micro_batch] * (split.accumulate_grad_batches if passes.pipeline else 1), scale=0.0
        )
        if config.trainer.val_samples:
            passes.forward([micro_batch] * passes.forward_micro_batches)
    except _failures() as error:
        raise RampcliError(
            f"torch.compile fails on this machine: {error}",
            remedy="a C++ compiler (`apt install g++`), space in TORCHINDUCTOR_CACHE_DIR,"
            " or trainer.compile=false",
        ) from error
    for part in passes.parts:
        part.zero_grad()
    with waiting:
        dist.barrier()


def _failures() -> tuple[type[Exception], ...]:
    """Returns the exceptions that mean that this machine cannot compile.

    Imports them here because the import takes seconds, and most runs do not compile.
    """
    from torch._dynamo.exc import BackendCompilerFailed
    from torch._inductor.exc import InductorError

    return BackendCompilerFailed, InductorError
