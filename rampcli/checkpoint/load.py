"""Loads checkpoints: a run's newest one on any number of ranks, or its weights in one process.

The latter are for export and generation.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from rampcli.batch.averages import EMA, LAST, MERGE, MERGE_KEY, merge_start, merged_checkpoints
from rampcli.batch.quantities import counted
from rampcli.checkpoint.compatibility import check_compatible, settings_of_checkpoint
from rampcli.checkpoint.shards import Shard, shard_of
from rampcli.checkpoint.state import (
    MODEL,
    AveragesAt,
    TrainingState,
    named_tensors,
    prefix_of,
)
from rampcli.checkpoint.tensor_files import SUFFIX, TensorFiles
from rampcli.config import snapshot
from rampcli.errors import DamagedFileError, NoCheckpointError, UsageError, reason_of, visible
from rampcli.estimate.model_size import count_parameters
from rampcli.models.decoder import Decoder, build_decoder
from rampcli.models.parts import FP32
from rampcli.parallel.mesh import local_part
from rampcli.parallel.ranks import RankError, broadcast_from_rank_0, on_all_ranks
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import Checkpoint, complete_checkpoints, name_remedy, read_checkpoints
from rampcli.settings.config import Config

DAMAGE = (DamagedFileError, OSError)
"""Failures for which an older checkpoint is loaded instead."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""Type of the weights in a forward pass, by `trainer.precision`."""
ReadWeights = Callable[[Mapping[str, Tensor]], None]
"""Fills weights in place, by their names."""
MAX_BYTES_PER_PARAMETER = 64
"""Upper limit for a parameter in a checkpoint: value, optimiser state, and share of the headers."""
MAX_OTHER_BYTES = 2**30
"""Upper limit for headers, which outweigh the tensors of a tiny model."""


def load_newest(
    run: RunDirectory,
    parts: Sequence[Decoder],
    optimizers: Sequence[torch.optim.Optimizer],
    averages_at: AveragesAt = lambda _: {},
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
        with torch.no_grad():
            for parameter, average in averages[kind].items():
                local_part(average).copy_(local_part(parameter))
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


def open_run(path: Path, *, step: int | None) -> tuple[Config, Checkpoint]:
    """Returns a run's configuration and its newest whole checkpoint, or the one of `step`.

    The configuration is that of the checkpoint's phase if the run has phases.

    Warns on standard error about newer checkpoints that are damaged.

    Raises:
        UsageError: there is no run.
        ForeignCheckpointError: the checkpoint belongs to another configuration than config.yaml.
        NoCheckpointError: there is no checkpoint, or it is damaged.
    """
    run = RunDirectory(path)
    of_run = snapshot.read(run.config)
    found, unreadable = read_checkpoints(run)
    damages = {
        number: error.message for number, error in unreadable.items() if step in (None, number)
    }
    for checkpoint in reversed(found):
        if step not in (None, checkpoint.step):
            continue
        config = settings_of_checkpoint(of_run, checkpoint)
        check_compatible(checkpoint, settings=snapshot.identity(config))
        damage = _damage_of(config, checkpoint)
        if damage is None:
            for number, reason in damages.items():
                if number > checkpoint.step:
                    print(f"warning: {reason}", file=sys.stderr)  # noqa: T201
            return config, checkpoint
        damages[checkpoint.step] = visible(f"{checkpoint.path.name} is damaged: {damage}")
    which = "checkpoint" if step is None else f"checkpoint of step {step}"
    steps = " or ".join(str(checkpoint.step) for checkpoint in found)
    reason = f": {damages[max(damages)]}" if damages else ""
    raise NoCheckpointError(
        f"{path} has no complete {which}{reason}",
        remedy=name_remedy(run, step=step)
        or (f"--step {steps}" if step is not None and steps else "train the run first"),
    )


def _damage_of(config: Config, checkpoint: Checkpoint) -> str | None:
    """Returns why a checkpoint does not hold the model of a configuration, or None if it does.

    Sizes are checked first, headers second and checksums last, so that a damaged or hostile file
    cannot make this process read or allocate more than the model needs.
    """
    try:
        damage = checkpoint.damage(by_checksum=False) or _size_mismatch(config, checkpoint)
        if damage is None:
            model = build_decoder(config.model, sequence_length=config.data.sequence_length)
            files = TensorFiles.open(checkpoint.path, checkpoint.files)
            files.find(_shards(dict(model.named_parameters())))
            damage = checkpoint.damage()
        return damage
    except DAMAGE as error:
        return reason_of(error)


def _size_mismatch(config: Config, checkpoint: Checkpoint) -> str | None:
    """Returns why files of these sizes cannot hold the model, or None."""
    parameters = count_parameters(config.model, sequence_length=config.data.sequence_length)
    held = sum(facts["bytes"] for name, facts in checkpoint.files.items() if name.endswith(SUFFIX))
    least = FP32 * parameters
    most = MAX_BYTES_PER_PARAMETER * parameters + MAX_OTHER_BYTES
    if least <= held <= most:
        return None
    return (
        f"its files have {held:,} bytes, which does not fit the {parameters:,} parameters of the"
        " model in config.yaml"
    )


def empty_model(
    config: Config, device: torch.device, dtype: torch.dtype = torch.float32
) -> Decoder:
    """Returns a whole model without values for its weights, which have no gradients."""
    model = build_decoder(config.model, sequence_length=config.data.sequence_length)
    model.requires_grad_(False).to(dtype)
    model.to_empty(device=device)
    model.tie()
    model.fill_buffers()
    return model


def load_model(
    config: Config, checkpoint: Checkpoint, device: torch.device, *, average: str | None = None
) -> Decoder:
    """Returns the whole model with its weights, which have no gradients.

    Args:
        average: as of `reader_of`.
    """
    read, _ = reader_of(config, checkpoint, average)
    model = empty_model(config, device)
    read(dict(model.named_parameters()))
    return model


def reader_of(
    config: Config, checkpoint: Checkpoint, average: str | None
) -> tuple[ReadWeights, list[int]]:
    """Returns a function that reads weights or an average, and the steps of the weights in it.

    Args:
        checkpoint: the checkpoint whose weights are read. A mean of several ends with it.
        average: `EMA`, `MERGE` for the mean that the run has set, or a mean such as `last:8`. None
            reads the weights themselves.

    Raises:
        UsageError: the run does not have this average, or not enough checkpoints.
        DamagedFileError: a checkpoint of a mean is damaged.
    """
    if average is None:
        return partial(read_weights, checkpoint), [checkpoint.step]
    if average != EMA and (average != MERGE or merge_start(config.average.merge) is None):
        merged = _merged(config, checkpoint, average)
        return partial(read_mean, merged), [one.step for one in merged]
    prefix = prefix_of(average)
    if not TensorFiles.open(checkpoint.path, checkpoint.files).hold(prefix):
        raise UsageError(
            f"--average {average}: {checkpoint.path} holds no average of the weights",
            remedy=f"without --average, or a run that trains with average.{average}",
        )
    return partial(read_weights, checkpoint, prefix=prefix), [checkpoint.step]


def _merged(config: Config, newest: Checkpoint, average: str) -> list[Checkpoint]:
    """Returns the checkpoints of a mean, oldest first.

    Their files are checked, except those of `newest`, which `open_run` has checked.
    """
    run = RunDirectory(newest.path.parents[1])
    text = config.average.merge if average == MERGE else average
    if text is None:
        raise UsageError(
            f"--average {average}: {MERGE_KEY} is null in {run.config}",
            remedy=f"--average {LAST}2 for the mean of the last two checkpoints",
        )
    count = merged_checkpoints(text, name="--average")
    found = [one for one in complete_checkpoints(run) if one.step <= newest.step]
    if len(found) < count:
        fewer = f"--average {LAST}{len(found)}" if len(found) > 1 else "without --average"
        raise UsageError(
            f"--average {average}: {text} needs {counted(count, 'checkpoint')} up to step"
            f" {newest.step:,}, and {run.path} has {len(found)}",
            remedy=[fewer, "a run with a larger checkpoint.keep_last"],
        )
    merged, of_run = found[-count:], snapshot.read(run.config)
    for checkpoint in merged[:-1]:
        settings = snapshot.identity(settings_of_checkpoint(of_run, checkpoint))
        check_compatible(checkpoint, settings=settings)
        if (damage := _damage_of(config, checkpoint)) is not None:
            raise DamagedFileError(visible(f"{checkpoint.path.name} is damaged: {damage}"))
    return merged


def read_mean(checkpoints: Sequence[Checkpoint], weights: Mapping[str, Tensor]) -> None:
    """Reads the mean of the weights in several checkpoints, in place, by their names.

    Only one more tensor is in memory at a time.

    Raises:
        DamagedFileError: a checkpoint does not hold them whole.
    """
    first, *others = (TensorFiles.open(one.path, one.files) for one in checkpoints)
    for name, weight in weights.items():
        first.read([shard_of(f"{MODEL}{name}", weight)])
        for number, files in enumerate(others, start=2):
            more = torch.empty_like(weight)
            files.read([shard_of(f"{MODEL}{name}", more)])
            local_part(weight).lerp_(local_part(more), 1 / number)


def read_weights(
    checkpoint: Checkpoint, weights: Mapping[str, Tensor], *, prefix: str = MODEL
) -> None:
    """Reads weights in place, by their names.

    Args:
        prefix: `MODEL`, or `prefix_of` an average to read that of each weight.

    Raises:
        DamagedFileError: the checkpoint does not hold them whole.
    """
    TensorFiles.open(checkpoint.path, checkpoint.files).read(_shards(weights, prefix))


def _shards(weights: Mapping[str, Tensor], prefix: str = MODEL) -> list[Shard]:
    return [shard_of(f"{prefix}{name}", tensor) for name, tensor in weights.items()]
