"""A worker that is killed during a background save, between tensors and manifest."""

import os
import signal
from pathlib import Path
from typing import Any

from rampcli.checkpoint import save
from ranks import train_rank

write_shards = save.write_shards


def train_until_saving(run_dir: str, checkpoint: str) -> None:
    """Trains as this rank, and is killed between the tensors and the manifest of a checkpoint."""

    def write_and_be_killed(folder: Path, *shards: Any, rank: int) -> dict[str, Any]:
        files = write_shards(folder, *shards, rank=rank)
        if folder.name == checkpoint:
            os.kill(os.getpid(), signal.SIGKILL)
        return files

    save.write_shards = write_and_be_killed
    train_rank(run_dir)
