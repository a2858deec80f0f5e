"""Loads a run's newest whole checkpoint into a model and its optimisers, on any number of ranks."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rampcli.checkpoint.shards import shard_of
from rampcli.checkpoint.state import (
    AveragesAt,
    TrainingState,
    named_tensors,
    no_averages,
    prefix_of,
)
from rampcli.checkpoint.tensor_files import TensorFiles
from rampcli.errors import DamagedFileError, NoCheckpointError
from rampcli.models.decoder import Decoder
from rampcli.parallel.mesh import local_part
from rampcli.parallel.ranks import RankError, broadcast_from_rank_0, on_all_ranks
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import Checkpoint, read_checkpoints

DAMAGE = (DamagedFileError, OSError)
"""Failures for which an older checkpoint is loaded instead."""


def load_newest(
    run: RunDirectory,
    parts: Sequence[Decoder],
    optimizers: Sequence[torch.optim.Optimizer],
    averages_at: AveragesAt = no_averages,
    *,
    check: Callable[[Checkpoint], None],
) -> TrainingState:
    """Loads the newest undamaged checkpoint. Every rank calls this.

    Each damaged checkpoint that is passed over leaves a `fault` in events.jsonl. An average that is
    not in the checkpoint begins at the loaded weights, and leaves an event `average`.

    Args:
        parts: this rank's parts of the model, filled in place.
        optimizers: their optimisers, whose state is filled in place.
        averages_at: averages of their weights that a checkpoint has to hold, filled in place.
        check: raises a ForeignCheckpointError for a checkpoint of another run.

    Returns:
        The state of the checkpoint, or the initial state if there is no checkpoint at all.

    Raises:
        ForeignCheckpointError: the checkpoint was trained with other settings or on another corpus.
        NoCheckpointError: there are checkpoints, but all of them are damaged.
    """
    readable, damaged = read_checkpoints(run)
    for error in damaged.values() if dist.get_rank() == 0 else ():
        run.append_event("fault", reason=error.message)
    if not broadcast_from_rank_0(len(readable) + len(damaged)):
        return TrainingState()
    for checkpoint in _newest_first(readable):
        if checkpoint is not None:
            check(checkpoint)
        try:
            return _load(run, checkpoint, parts, optimizers, averages_at)
        except RankError as error:
            if dist.get_rank() == 0 and checkpoint is not None:
                reason = f"{checkpoint.path.name} is damaged: {error}"
                run.append_event("fault", reason=reason)
    raise NoCheckpointError(
        f"every checkpoint in {run.checkpoints} is damaged",
        remedy="another name= or run_dir= to start from step 0",
    )


def _newest_first(found: Sequence[Checkpoint]) -> Iterator[Checkpoint | None]:
    """Yields the checkpoints that rank 0 found, or None for those that this rank did not find."""
    by_step = {checkpoint.step: checkpoint for checkpoint in found}
    step = broadcast_from_rank_0(max(by_step, default=-1))
    while step != -1:
        yield by_step.get(step)
        step = broadcast_from_rank_0(max((s for s in by_step if s < step), default=-1))


def _load(
    run: RunDirectory,
    checkpoint: Checkpoint | None,
    parts: Sequence[Decoder],
    optimizers: Sequence[torch.optim.Optimizer],
    averages_at: AveragesAt,
) -> TrainingState:
    """Loads a checkpoint in place and returns its state.

    Sizes and headers are checked first, so nothing is built or read for a checkpoint that fails
    there. Checksums are compared while reading, each rank taking a share of the files.
    """
    files = on_all_ranks(lambda: _open_files(checkpoint), errors=DAMAGE)
    assert checkpoint is not None
    if checkpoint.step > 0:
        make_optimizer_state(optimizers)
    averages = averages_at(checkpoint.consumed_samples)
    held = {kind: values for kind, values in averages.items() if files.hold(prefix_of(kind))}
    tensors = named_tensors(parts, optimizers, held, copies=True)
    shards = [shard_of(name, tensor) for name, tensor, _ in tensors]
    names, rank, ranks = sorted(checkpoint.files), dist.get_rank(), dist.get_world_size()
    to_check = [name for at, name in enumerate(names) if at * ranks // len(names) == rank]
    on_all_ranks(lambda: files.read(shards, to_check=to_check), errors=DAMAGE)
    for kind in averages.keys() - held.keys():
        _begin_average(averages[kind])
        if dist.get_rank() == 0:
            reason = f"average.{kind} begins at the weights of step {checkpoint.step:,}"
            run.append_event(
                "average",
                step=checkpoint.step,
                consumed_samples=checkpoint.consumed_samples,
                reason=reason,
            )
    recent = [(loss, norm) for loss, norm in checkpoint.manifest.get("recent", [])]
    return TrainingState(
        step=checkpoint.step,
        consumed_samples=checkpoint.consumed_samples,
        order_hash=checkpoint.manifest["order_hash"],
        recent=recent,
    )


@torch.no_grad()
def _begin_average(values: Mapping[nn.Parameter, Tensor]) -> None:
    """Sets an average to the weights, in place."""
    for parameter, average in values.items():
        local_part(average).copy_(local_part(parameter))


def _open_files(checkpoint: Checkpoint | None) -> TensorFiles:
    """Returns a checkpoint's tensor files after checking all sizes and headers."""
    if checkpoint is None:
        raise DamagedFileError("a rank cannot read its manifest")
    if (damage := checkpoint.damage(by_checksum=False)) is not None:
        raise DamagedFileError(damage)
    return TensorFiles.open(checkpoint.path, checkpoint.files)


def make_optimizer_state(optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Makes optimisers create the state that they otherwise create in their first step.

    Each parameter takes a step with a gradient of zero and a learning rate of zero. Only one
    gradient is in memory at a time.
    """
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            rate, group["lr"] = group["lr"], 0.0
            for parameter in group["params"]:
                if parameter not in optimizer.state:
                    parameter.grad = torch.zeros_like(parameter)
                    optimizer.step()
                    parameter.grad = None
            group["lr"] = rate
