"""Checkpoints of several ranks that are written while training goes on."""

import os
import shutil
import signal
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from resource import RLIMIT_FSIZE, setrlimit
from typing import Any

import pytest
import torch.distributed as dist
from safetensors import safe_open

from rampcli.checkpoint import save
from rampcli.checkpoint.save import Checkpoints
from rampcli.checkpoint.state import TrainingState
from rampcli.checkpoint.tensor_files import write_shards
from rampcli.files.guarded_folder import write_json
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import MANIFEST, complete_checkpoints
from rampcli.settings.config import Config
from rampcli.train.optimizers import build_optimizers
from ranks import build_passes, joined, run_ranks, train_rank
from tiny_runs import assert_every_sample_is_read_once

SHORT, LONG = timedelta(seconds=0.5), timedelta(minutes=10)


def train_until_saving(run_dir: str, checkpoint: str) -> None:
    """Trains as this rank, and is killed between the tensors and the manifest of a checkpoint."""

    def write_and_be_killed(folder: Path, *shards: Any, rank: int) -> dict[str, Any]:
        files = write_shards(folder, *shards, rank=rank)
        if folder.name == checkpoint:
            os.kill(os.getpid(), signal.SIGKILL)
        return files

    save.write_shards = write_and_be_killed
    train_rank(run_dir)


def save_slowly(config: Config, folder: Path, in_background: bool) -> None:
    """Saves a checkpoint for which rank 1 takes longer than `SHORT`, the timeout of the meshes."""
    with joined() as (rank, _):
        passes = build_passes(config)
        checkpoints = Checkpoints(
            RunDirectory(folder),
            passes.parts,
            build_optimizers(passes.parts, config.optim),
            keep_last=1,
            facts={"corpus": "corpus", "settings": {}, "world_size": 2},
            in_background=in_background,
        )

        def write(*arguments, **words):
            time.sleep(2 * SHORT.total_seconds() * rank)
            return write_shards(*arguments, **words)

        dist.barrier()
        save.write_shards = write
        passes.meshes.set_timeout(SHORT)
        try:
            checkpoints.save(TrainingState(step=1, consumed_samples=4))
            checkpoints.wait()
        finally:
            save.write_shards = write_shards
            passes.meshes.set_timeout(LONG)


EVERY = ["checkpoint.every_steps=2", "checkpoint.keep_last=100"]
STEADY = [
    *EVERY,
    "rampup.at_boundary=continue",
    "rampup.node_policy=fixed",
    "data.micro_batch_size=1",
    "trainer.val_samples=0",
    "average.ema=100",
]
MESHES = {
    "fsdp2": (2, []),
    "pp2": (2, ["parallel.pipeline_parallel_size=2"]),
    "ddp2 x tp2": (4, ["parallel.data_parallel_shard_size=1", "parallel.tensor_parallel_size=2"]),
}


@pytest.mark.parametrize("mesh", MESHES)
def test_a_background_save_equals_a_blocking_save_byte_for_byte(mesh, run):
    processes, words = MESHES[mesh]
    waiting = run.beside("waiting")
    words = [*STEADY, *words, "checkpoint.every_steps=1", "trainer.max_samples=8"]
    run.workers(processes, *words, "checkpoint.async=true")
    waiting.workers(processes, *words)
    saved, expected = (complete_checkpoints(each.directory) for each in (run, waiting))
    assert len(saved) == len(expected) > 3
    for one, other in zip(saved, expected, strict=True):
        assert one.manifest == other.manifest
        assert one.damage() is None
        for name in one.files:
            assert (one.path / name).read_bytes() == (other.path / name).read_bytes()


def test_replicas_save_each_tensor_once_and_share_the_work_evenly(run):
    run.workers(2, *STEADY, "parallel.data_parallel_shard_size=1", "trainer.max_samples=8")
    folder = complete_checkpoints(run.directory)[-1].path
    sizes: list[int] = []
    names: list[str] = []
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            names += file.keys()
            sizes.append(sum(file.get_tensor(name).nbytes for name in file.keys()))  # noqa: SIM118
    assert len(names) == len(set(names))
    assert len(sizes) == 2
    assert max(sizes) < 1.1 * min(sizes)


@pytest.mark.parametrize("in_background", [False, True])
def test_a_save_may_take_longer_than_ranks_wait_for_each_other_in_a_step(
    tmp_path, small_gpt, in_background
):
    run_ranks(2, save_slowly, small_gpt, tmp_path, in_background, logs=tmp_path / "logs")
    (saved,) = complete_checkpoints(RunDirectory(tmp_path))
    assert saved.damage() is None


def test_a_kill_during_a_background_save_loses_no_older_checkpoint(run):
    words = [*STEADY, "checkpoint.async=true"]
    undisturbed = run.beside("undisturbed")
    undisturbed.workers(2, *words)
    run.workers(2, *words, "trainer.max_samples=2")  # describes the run, and takes a step
    run.directory.config.write_text(
        undisturbed.directory.config.read_text().replace(str(undisturbed.path), str(run.path))
    )
    killed_in = (str(run.path), "step_00000006.tmp")
    with pytest.raises(AssertionError):
        run_ranks(2, train_until_saving, *killed_in, logs=run.directory.logs)
    assert (run.directory.checkpoints / "step_00000006.tmp").exists()
    found = complete_checkpoints(run.directory)
    assert [checkpoint.step for checkpoint in found] == [1, 2, 4]
    assert all(checkpoint.damage() is None for checkpoint in found)
    run.workers(2, *words)
    assert_every_sample_is_read_once(run)
    assert [row["loss"] for row in run.rows] == [row["loss"] for row in undisturbed.rows]
    assert not list(run.directory.checkpoints.glob("*.tmp"))


@pytest.mark.parametrize("mode", ["true", "false"])
def test_a_checkpoint_that_cannot_be_written_ends_all_ranks_with_the_reason(run, mode):
    run.workers(2, *STEADY, "trainer.max_samples=4")
    words = [f"checkpoint.async={mode}", "trainer.num_nodes=2", "trainer.max_samples=8_000_000"]
    # Files may not become as large as the tensors, as on a full disk.
    limit = partial(setrlimit, RLIMIT_FSIZE, (100_000, 100_000))
    command = run.start(*STEADY, *words, prepare=limit)
    _, errors = command.communicate()
    assert command.returncode == 1
    assert "cannot save the checkpoint of step 4: " in errors
    assert "File too large" in errors
    assert run.state["status"] == "failed"
    assert run.state["error"]["understood"] is True
    assert [checkpoint.step for checkpoint in complete_checkpoints(run.directory)] == [2]
    assert run.rows[-1]["step"] <= 6  # the next save at the latest


def test_all_ranks_resume_from_the_older_checkpoint_if_tensors_of_the_newest_are_missing(
    run,
):
    run.workers(2, *STEADY, "trainer.max_samples=16")
    older, newest = complete_checkpoints(run.directory)[-2:]
    shard = max(newest.files)
    shutil.copyfile(
        newest.path / min(newest.files), newest.path / shard
    )  # the first rank's boxes twice, the second's not at all
    files = newest.files | {shard: newest.files[min(newest.files)]}
    write_json(newest.path / MANIFEST, newest.manifest | {"files": files})
    run.workers(2, *STEADY, "trainer.max_samples=24")
    assert [event["step"] for event in run.events_of("start")] == [0, older.step]
    assert next(event["reason"] for event in run.events_of("fault")).startswith(
        f"{newest.path.name} is damaged: "
    )
    assert all(checkpoint.damage() is None for checkpoint in complete_checkpoints(run.directory))


def test_a_stop_and_the_end_of_a_stage_wait_for_a_background_save(run):
    run.complete(
        "checkpoint.async=true",
        "checkpoint.every_steps=1",
        "checkpoint.keep_last=100",
        "model.rampup_batch_size=[2,6,16]",
        "trainer.num_nodes=2",
        "trainer.max_samples=40",
    )
    assert_every_sample_is_read_once(run)
    found = complete_checkpoints(run.directory)
    assert run.rows[-1]["stage"] == 1
    assert [checkpoint.step for checkpoint in found] == [row["step"] for row in run.rows]
    assert all(checkpoint.damage() is None for checkpoint in found)
