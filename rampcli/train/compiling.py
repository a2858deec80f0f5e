"""Compiles the layers before the first step, so that no step's time includes compilation."""

from contextlib import suppress
from dataclasses import replace

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # which its types lack
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from rampcli.batch.plan import BatchPlan
from rampcli.data.loader import MicroBatch
from rampcli.errors import RampcliError, printable
from rampcli.estimate.layer_memory import needs_fsdp
from rampcli.machine.activity import waiting
from rampcli.models.decoder import build_decoder
from rampcli.models.linear import round_factors
from rampcli.parallel.fsdp import POLICIES
from rampcli.settings.config import Config
from rampcli.train.build import compile_layers, recompute_activations
from rampcli.train.passes import Passes

COMPILER_REMEDY = "a C++ compiler (`apt install g++`), space in TORCHINDUCTOR_CACHE_DIR"


def compile_ahead(config: Config, *, micro_batch_size: int, world_size: int) -> None:
    """Compiles a layer on the CPU while this process waits to join the others.

    Then, the layers of its model find themselves compiled. If they are split over tensor or context
    ranks, it only makes torch.compile import what it needs. Ignores failures: `compile_passes`
    fails too, and reports why.

    Args:
        world_size: ranks that this process will join.
    """
    parallel = config.parallel
    if parallel.tensor_parallel_size * parallel.context_parallel_size > 1:
        why_not_compiled(torch.device("cpu"))
        return
    with suppress(failure()):
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        try:
            # Torch compiles sharded layers for themselves.
            is_wrapped = needs_fsdp(config, world_size // parallel.pipeline_parallel_size)
            mesh = init_device_mesh("cpu", (1,)) if is_wrapped else None
            _compile_layer(config, micro_batch_size, mesh)
        finally:
            dist.destroy_process_group()


def why_not_compiled(device: torch.device) -> str | None:
    """Returns why nothing can be compiled for a device, or None: it compiles a trivial function."""
    one = torch.ones(1, requires_grad=True, device=device)
    try:
        torch.compile(lambda x: 2 * x, dynamic=False)(one).sum().backward()
    except failure() as error:
        return printable(str(error).partition("\n")[0])
    return None


def compile_passes(passes: Passes, config: Config, batch_plan: BatchPlan) -> None:
    """Runs the passes of training and validation once, without effect. Every rank calls this.

    Raises:
        RampcliError: this machine cannot compile.
    """
    tokens = torch.zeros(
        batch_plan.micro_batch_size,
        config.data.sequence_length,
        dtype=torch.int64,
        device=passes.device,
    )
    micro_batch = MicroBatch(tokens, tokens, tokens if config.data.document_mask else None)
    try:
        passes.forward_backward(
            [micro_batch] * (batch_plan.accumulate_grad_batches if passes.pipeline else 1),
            scale=0.0,
        )
        if config.trainer.val_samples:
            passes.forward([micro_batch] * passes.forward_micro_batches)
    except failure() as error:
        raise RampcliError(
            f"torch.compile fails on this machine: {error}",
            remedy=f"{COMPILER_REMEDY}, or trainer.compile=false",
        ) from error
    for part in passes.parts:
        part.zero_grad()
    with waiting:
        dist.barrier()


def _compile_layer(config: Config, micro_batch_size: int, mesh: DeviceMesh | None) -> None:
    """Compiles a layer for training and validation on the CPU, without the rest of the model.

    Args:
        mesh: the layer is sharded over it, unless it is None.
    """
    # The second of three layers has neither embeddings before it nor a loss after it.
    model, length = replace(config.model, num_layers=3), config.data.sequence_length
    part = build_decoder(model, sequence_length=length, layers=range(1, 2))
    (layer,) = part.layers.values()
    round_factors(layer, config.trainer.matmul_precision, torch.device("cpu"))
    recompute_activations([layer], config.trainer.activation_checkpointing)
    compile_layers([layer])
    policy = POLICIES[config.trainer.precision]
    if mesh is not None:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    part.to_empty(device="cpu")
    part.fill_buffers()
    with torch.no_grad():
        for weight in layer.parameters():
            weight.zero_()
    shape = micro_batch_size // (config.parallel.num_pipeline_microbatches or 1), length
    hidden = torch.zeros(*shape, model.hidden_size, dtype=policy.param_dtype)
    positions = torch.zeros(shape, dtype=torch.int64) if config.data.document_mask else None
    # As from the layer before, one needs a gradient and is not a leaf; the other one needs none.
    part(hidden.clone().requires_grad_().clone(), positions).sum().backward()
    with torch.no_grad():
        part(hidden, positions)


def failure() -> type[Exception]:
    """Returns the exception that means that this machine cannot compile.

    Imports it here because the import takes seconds, and most runs do not compile.
    """
    from torch._dynamo.exc import TorchDynamoException

    return TorchDynamoException
