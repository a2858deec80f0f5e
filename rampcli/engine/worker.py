"""One rank of a run: `python -m rampcli.engine.worker RUN_DIR` under torchrun, or alone."""

import gc
import os
import signal
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

from rampcli.config import snapshot
from rampcli.config.choices import Accelerator
from rampcli.config.huggingface import check_init_from
from rampcli.config.resolve import Resolved, resolve
from rampcli.config.schema import Config
from rampcli.data.hosts import build_reading
from rampcli.data.loader import Loader, ValidationLoader
from rampcli.data.sources import open_corpora
from rampcli.engine.build import RowsOf, build_parts
from rampcli.engine.checkpoint import Checkpoints
from rampcli.engine.guard import Outliers
from rampcli.engine.metrics import Journal
from rampcli.engine.optimizers import build_optimizers
from rampcli.engine.passes import Passes
from rampcli.engine.trainer import StopRequest, Trainer
from rampcli.errors import RampcliError, UsageError
from rampcli.lifeline import die_with_parent
from rampcli.models.huggingface import Folder
from rampcli.parallel.mesh import build_meshes
from rampcli.run_directory import RunDirectory

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def main() -> None:
    """Train, and leave with an exit code of `rampcli.errors`."""
    if "TORCHELASTIC_RUN_ID" in os.environ:  # an agent's worker: without its agent nobody would end it
        die_with_parent()
    stop = StopRequest()
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: setattr(stop, "asked", True))
    run = RunDirectory(Path(sys.argv[1]))
    try:
        train(run, stop)
    except RampcliError as error:
        report_failure(run, error)
        leave(error.exit_code)
    except Exception:  # whatever it is, state.json says that the run failed, and the log says why
        traceback.print_exc()
        report_failure(run, RampcliError(traceback.format_exc(limit=-1).strip().splitlines()[-1]), understood=False)
        leave(1)
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
    leave(0)


def train(run: RunDirectory, stop: StopRequest) -> None:
    """Join the other ranks, build what training needs from the run directory's snapshot, and train.

    Raises:
        RampcliError: anything that a user can mend.
    """
    resolved = resolve(snapshot.read(run.config), consumed_samples_in=lambda _: run.consumed_samples())
    config = resolved.config
    device = join_ranks(config)
    trainer = build_trainer(resolved, run, device, stop)
    trainer.journal.event("start", trainer.state, world_size=dist.get_world_size(), device=str(device))
    trainer.journal.status("running", trainer.state)
    trainer.run()


def join_ranks(config: Config) -> torch.device:
    """Form the process group from the environment that torchrun sets; alone, a group of one. Returns this rank's device."""
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0")):
        os.environ.setdefault(name, value)
    device = device_here(config.trainer.accelerator)
    if device.type == "cpu":
        dist.init_process_group("gloo")
    else:
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    return device


def build_trainer(resolved: Resolved, run: RunDirectory, device: torch.device, stop: StopRequest) -> Trainer:
    """Everything that a run needs, with the newest checkpoint loaded."""
    config, plan = resolved.config, resolved.plan
    meshes = build_meshes(device, config.parallel)
    reading = build_reading(config, meshes.data_ranks)
    corpora = open_corpora(config) if reading.reads else None
    parts = build_parts(config, meshes, device, None if run.complete_checkpoints() else given_weights(config))
    optimizers = build_optimizers(parts, config.optim)
    fingerprint = agreed_fingerprint(corpora.training.fingerprint if corpora else None, device=device)
    checkpoints = Checkpoints(
        run,
        parts,
        optimizers,
        keep_last=config.checkpoint.keep_last,
        facts={"settings": snapshot.identity(config), "corpus": fingerprint, "world_size": dist.get_world_size()},
        tokenizer=corpora.tokenizer if corpora else None,
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
        validation_loader=ValidationLoader(corpora.validation if corpora else None, reading=reading, device=device),
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
    lowest, highest = (torch.full((32,), rest, dtype=torch.uint8, device=device) for rest in (255, 0))
    if mine is not None:
        for found in (lowest, highest):
            found.copy_(torch.tensor(list(bytes.fromhex(mine))))
    dist.all_reduce(lowest, dist.ReduceOp.MIN)
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    if not torch.equal(lowest, highest):
        raise RampcliError("the hosts do not read the same corpora", remedy="the same files, with the same names, on all of them")
    return bytes(lowest.tolist()).hex()


def device_here(accelerator: Accelerator) -> torch.device:
    """Where this process computes; on a host with several GPUs, that of its local rank.

    Raises:
        UsageError: a GPU is wanted and there is none.
    """
    if accelerator is not Accelerator.cpu and torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    if accelerator is Accelerator.gpu:
        raise UsageError("trainer.accelerator=gpu, but torch sees no GPU here", keys=("trainer.accelerator",))
    return torch.device("cpu")


def given_weights(config: Config) -> RowsOf | None:
    """The weights of `model.init_from`; None where there is none.

    Raises:
        UsageError: the folder holds another model.
    """
    if config.model.init_from is None:
        return None
    check_init_from(config)
    return Folder(Path(config.model.init_from), config.model, sequence_length=config.data.sequence_length).rows_of


def report_failure(run: RunDirectory, error: RampcliError, *, understood: bool = True) -> None:
    """Print why, and let state.json say that the run failed; where several ranks fail, it keeps what is understood."""
    print(error, file=sys.stderr)  # noqa: T201
    if understood or "error" not in (run.read_state() or {}):
        said = {"message": error.message, "set_by": error.set_by, "remedy": error.remedy, "exit_code": error.exit_code}
        run.write_state({**(run.read_state() or {}), "status": "failed", "error": said})


def leave(code: int) -> None:
    """End the process without its exit handlers: FSDP2 on gloo aborts in them, after all the work is done."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
