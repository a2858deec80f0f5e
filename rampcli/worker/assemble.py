"""What a rank does from its first line to its last: join the others, build, load, train, leave."""

import gc
import os
import sys
import time
import traceback
from pathlib import Path
from typing import IO, NoReturn

import torch
import torch._dynamo  # optimisers and FSDP import it in their first step, for which nobody is to wait then
import torch.distributed as dist

from rampcli.checkpoint.save import Checkpoints
from rampcli.config import snapshot
from rampcli.config.huggingface import check_init_from
from rampcli.config.layers import sources_named
from rampcli.config.run_plan import Resolved, run_plan
from rampcli.config.schema import Config
from rampcli.data.hosts import build_reading
from rampcli.data.loader import Loader, ValidationLoader
from rampcli.data.sources import open_corpora
from rampcli.errors import EXIT_INTERRUPTED, RampcliError
from rampcli.models.huggingface import Folder
from rampcli.parallel.mesh import build_meshes
from rampcli.parallel.ranks import from_rank_0
from rampcli.run_directory import PREEMPTED, RunDirectory
from rampcli.train.build import RowsOf, build_parts
from rampcli.train.loop import Trainer
from rampcli.train.observers.boundary import Arrival
from rampcli.train.observers.journal import Journal
from rampcli.train.observers.outliers import Outliers
from rampcli.train.optimizers import build_optimizers
from rampcli.train.passes import Passes
from rampcli.train.stopping import StopRequest
from rampcli.worker.join import join_ranks


def train_and_leave(
    run: RunDirectory, stop: StopRequest, *, started: float, lock: IO[str]
) -> NoReturn:
    """Train, and end this process with an exit code of `rampcli.errors`.

    Args:
        run: its directory.
        stop: is set where a signal comes.
        started: when this process ran its first line, in seconds since 1970.
        lock: says that this worker lives; it goes with the process.
    """
    try:
        status = train(run, stop, started=started)
    except RampcliError as error:
        report_failure(run, error)
        leave(error.exit_code)
    except Exception:  # whatever it is, state.json says that the run failed, and the log says why
        traceback.print_exc()
        report_failure(
            run,
            RampcliError(traceback.format_exc(limit=-1).strip().splitlines()[-1]),
            understood=False,
        )
        leave(1)
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
    lock.close()
    leave(EXIT_INTERRUPTED if status == PREEMPTED else 0)


def train(run: RunDirectory, stop: StopRequest, *, started: float) -> str:
    """Join the other ranks, build what training needs from the run directory's snapshot, and train; returns how it ended.

    Raises:
        RampcliError: anything that a user can mend.
    """
    imported = time.time()
    resolved = run_plan(snapshot.read(run.config), consumed_samples=run.consumed_samples())
    with sources_named(resolved.config):
        device = join_ranks(resolved.config.trainer.accelerator)
        trainer = build_trainer(resolved, run, device, stop)
        trainer.journal.event(
            "start", trainer.state, world_size=dist.get_world_size(), device=str(device)
        )
        trainer.journal.status("running", trainer.state)
        return trainer.run(Arrival(started=started, imported=imported, loaded=time.time()))


def build_trainer(
    resolved: Resolved, run: RunDirectory, device: torch.device, stop: StopRequest
) -> Trainer:
    """Everything that a run needs, with the newest checkpoint loaded."""
    config, plan = resolved.config, resolved.plan
    meshes = build_meshes(device, config.parallel)
    reading = build_reading(config, meshes.data_ranks)
    corpora = open_corpora(config) if reading.reads else None
    is_new = from_rank_0(not run.complete_checkpoints())
    parts = build_parts(
        config, meshes, device, given_weights(config) if is_new else None, filled=bool(is_new)
    )
    optimizers = build_optimizers(parts, config.optim)
    fingerprint = agreed_fingerprint(
        corpora.training.fingerprint if corpora else None, device=device
    )
    checkpoints = Checkpoints(
        run,
        parts,
        optimizers,
        keep_last=config.checkpoint.keep_last,
        facts={
            "settings": snapshot.identity(config),
            "corpus": fingerprint,
            "world_size": dist.get_world_size(),
        },
        tokenizer=corpora.tokenizer if corpora else None,
        in_background=config.checkpoint.async_,
    )
    state = checkpoints.load_newest()
    if dist.get_rank() == 0:
        run.forget_after(state.step)
    return Trainer(
        config=config,
        plan=plan,
        learning_rate=resolved.learning_rate(),
        passes=Passes(config, parts, meshes, device),
        optimizers=optimizers,
        loader=Loader(corpora.training if corpora else None, reading=reading, device=device),
        validation_loader=ValidationLoader(
            corpora.validation if corpora else None, reading=reading, device=device
        ),
        checkpoints=checkpoints,
        journal=Journal(run, plan, config),
        outliers=Outliers(sigma=config.optim.skip_step_sigma, recent=state.recent),
        device=device,
        state=state,
        stop=stop,
    )


def agreed_fingerprint(mine: str | None, *, device: torch.device) -> str:
    """The fingerprint of the corpora, which all ranks that read have to find the same; None from those that do not read.

    Raises:
        RampcliError: they found different ones.
    """
    lowest, highest = (
        torch.full((32,), rest, dtype=torch.uint8, device=device) for rest in (255, 0)
    )
    if mine is not None:
        for found in (lowest, highest):
            found.copy_(torch.tensor(list(bytes.fromhex(mine))))
    dist.all_reduce(lowest, dist.ReduceOp.MIN)
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    if not torch.equal(lowest, highest):
        raise RampcliError(
            "the hosts do not read the same corpora",
            remedy="the same files, with the same names, on all of them",
        )
    return bytes(lowest.tolist()).hex()


def given_weights(config: Config) -> RowsOf | None:
    """The weights of `model.init_from`; None where there is none.

    Raises:
        UsageError: the folder holds another model.
    """
    if config.model.init_from is None:
        return None
    check_init_from(config)
    return Folder(
        Path(config.model.init_from), config.model, sequence_length=config.data.sequence_length
    ).rows_of


def report_failure(run: RunDirectory, error: RampcliError, *, understood: bool = True) -> None:
    """Print why, and let state.json say that the run failed; where several ranks fail, it keeps what is understood."""
    print(error, file=sys.stderr)  # noqa: T201
    try:
        if understood or "error" not in (run.read_state() or {}):
            run.change_status("failed", error=error.facts() | {"understood": understood})
    except RampcliError as another:  # state.json itself may be what is wrong
        print(another, file=sys.stderr)  # noqa: T201


def leave(code: int) -> NoReturn:
    """End the process without its exit handlers: FSDP2 on gloo aborts in them, after all the work is done."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
