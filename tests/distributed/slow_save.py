"""A rank that saves a checkpoint more slowly than collectives of training allow."""

import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from rampcli.checkpoint import save
from rampcli.checkpoint.save import Checkpoints
from rampcli.checkpoint.state import TrainingState
from rampcli.checkpoint.tensor_files import write_shards
from rampcli.parallel.mesh import build_meshes
from rampcli.runs.directory import RunDirectory
from rampcli.settings.config import Config
from rampcli.train.build import build_parts
from rampcli.train.optimizers import build_optimizers
from ranks import joined

SHORT, LONG = timedelta(seconds=0.5), timedelta(minutes=10)


def save_slowly(config: Config, folder: Path, in_background: bool) -> None:
    """Saves a checkpoint for which rank 1 takes longer than `SHORT`, the timeout of the meshes."""
    device = torch.device("cpu")
    with joined() as (rank, _):
        meshes = build_meshes(device, config.parallel)
        parts = build_parts(config, meshes, device)
        checkpoints = Checkpoints(
            RunDirectory(folder),
            parts,
            build_optimizers(parts, config.optim),
            keep_last=1,
            facts={"corpus": "corpus", "settings": {}, "world_size": 2},
            in_background=in_background,
        )

        def write(*arguments, **words):
            time.sleep(2 * SHORT.total_seconds() * rank)
            return write_shards(*arguments, **words)

        dist.barrier()
        save.write_shards = write
        meshes.set_timeout(SHORT)
        try:
            checkpoints.save(TrainingState(step=1, consumed_samples=4))
            checkpoints.wait()
        finally:
            save.write_shards = write_shards
            meshes.set_timeout(LONG)
