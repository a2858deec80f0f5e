"""Measures how long checkpoints take and how long training waits for them.

    python tests/benchmarks/bench_checkpoint.py [ROUNDS [PROCESSES ...]]

The model is a Llama of 99 million parameters with AdamW: 1.19 GB in fp32. It trains in one
process, and in two that shard it (FSDP), each with one thread. Each round measures, one after the
other:

* writing and reading raw files: as many bytes as the checkpoint, in pieces of 8 MiB, by as many
  processes into as many files, flushed and renamed over older files as a checkpoint is; they are
  in memory of the kind through which checkpoints are written;
* saving and loading a checkpoint;
* training steps while a checkpoint is saved by `checkpoint.async`, and by torch's `dcp.async_save`
  with its defaults.

The stall of rampcli is the time of the call plus the time that the next optimiser step waits for
the copy. The stall of torch is the time of the call. Files are read once and dropped from the page
cache before a read is measured: on a virtual machine, memory that was not in use lately takes
longer to fill than the disk takes to read. Prints every round, and medians at the end. Ratios are
medians of the ratios within a round.

Files are written to the current directory, or to $BENCH_DIR.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from harness import Steps
from torch.distributed.checkpoint.state_dict_saver import async_save

from rampcli.checkpoint import tensor_files
from rampcli.checkpoint.load import load_newest
from rampcli.checkpoint.save import Checkpoints
from rampcli.checkpoint.state import TrainingState, named_tensors
from rampcli.parallel.ranks import gather_from_all_ranks
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import complete_checkpoints
from rampcli.settings.config import Config
from rampcli.settings.model import ModelConfig

MODEL = ModelConfig(
    num_layers=12, hidden_size=768, ffn_hidden_size=2048, num_attention_heads=12, vocab_size=9200
)
PIECE = 8 * 2**20
TOKENS = 64
STEPS = 2
COLUMNS = {
    "raw_write_s": "raw write, s",
    "raw_direct_s": "raw write past the page cache, s",
    "save_s": "save, s",
    "save / raw": "raw write / save",
    "save / direct": "raw write past the page cache / save",
    "no_sums_s": "save without checksums, s",
    "share of sums": "time of the checksums / save",
    "raw_read_s": "raw read, s",
    "load_s": "load with checksums, s",
    "load / raw": "raw read / load",
    "step_s": "a training step, s",
    "stall_s": "stall of checkpoint.async, s",
    "torch_stall_s": "stall of dcp.async_save, s",
    "stall / torch": "stall / stall of dcp.async_save",
    "copy_s": "stall of checkpoint.async if the optimiser steps at once, s",
    "copy / torch": "that stall / stall of dcp.async_save",
    "lost_s": f"time until the save has ended, less {STEPS} steps, s",
    "torch_lost_s": "the same with dcp.async_save, s",
}


class NoSums:
    """Replaces the checksums."""

    def update(self, piece: object) -> None:
        pass

    def hexdigest(self) -> str:
        return ""


class Bench:
    """The model, optimisers and checkpoints of one rank."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.trained = Steps(Config(model=MODEL), (1, TOKENS))
        self.parts, self.optimizers = self.trained.parts, self.trained.optimizers
        self.in_background, self.waiting = (
            self._checkpoints(in_background=choice) for choice in (True, False)
        )
        self.group = dist.new_group(backend="gloo")
        self.saves = 0
        self.step()

    def _checkpoints(self, *, in_background: bool) -> Checkpoints:
        run = RunDirectory(self.root / str(in_background))
        run.checkpoints.mkdir(parents=True, exist_ok=True)
        return Checkpoints(
            run,
            self.parts,
            self.optimizers,
            keep_last=1,
            facts={"corpus": "", "settings": {}},
            in_background=in_background,
        )

    def step(self) -> None:
        self.trained.accumulate()
        self.trained.update()

    def state(self) -> TrainingState:
        self.saves += 1
        return TrainingState(step=self.saves, consumed_samples=0)

    def save(self) -> None:
        self.waiting.save(self.state())

    def save_without_sums(self) -> None:
        sums, tensor_files.PageSums = tensor_files.PageSums, NoSums
        self.save()
        tensor_files.PageSums = sums

    def load(self) -> None:
        state = load_newest(self.waiting.run, self.parts, self.optimizers, check=lambda _: None)
        assert state.step == self.saves

    def files(self) -> list[Path]:
        return sorted(complete_checkpoints(self.waiting.run)[-1].path.glob("*.safetensors"))

    def steps(self) -> None:
        for _ in range(STEPS):
            self.step()

    def background(self) -> float:
        self.in_background.save(self.state())
        self.steps()
        stall_s = self.in_background.stall_s
        self.in_background.wait()
        return stall_s

    def background_without_a_step(self) -> float:
        self.in_background.save(self.state())
        self.in_background.wait_for_copy()
        stall_s = self.in_background.stall_s
        self.in_background.wait()
        return stall_s

    def background_of_torch(self) -> float:
        tensors = {
            name: tensor.detach()
            for name, tensor, _ in named_tensors(self.parts, self.optimizers, copies=False)
        }
        shutil.rmtree(self.root / "torch", ignore_errors=True)
        dist.barrier()
        began = time.perf_counter()
        saving = async_save(
            tensors, checkpoint_id=str(self.root / "torch"), process_group=self.group
        )
        stall_s = time.perf_counter() - began
        self.steps()
        saving.result()
        return stall_s

    def raw_write(self, memory: memoryview, path: Path, *, flags: int = 0) -> None:
        file = os.open(f"{path}.tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL | flags, 0o666)
        for begin in range(0, len(memory), PIECE):
            os.write(file, memory[begin : begin + PIECE])
        os.fsync(file)
        os.close(file)
        os.replace(f"{path}.tmp", path)  # frees the space of the older file

    def raw_read(self, memory: memoryview, path: Path) -> None:
        with path.open("rb", buffering=0) as file:
            for begin in range(0, len(memory), PIECE):
                file.readinto(memory[begin : begin + PIECE])


def timed_on_all_ranks(work: Callable[[], object]) -> tuple[float, object]:
    """Returns the seconds until all ranks have finished, and this rank's result."""
    dist.barrier()
    began = time.perf_counter()
    result = work()
    dist.barrier()
    return time.perf_counter() - began, result


def drop_from_page_cache(paths: list[Path]) -> None:
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def measure(bench: Bench, number: int) -> dict[str, float]:
    """Measures one round. The compared methods take turns at going first."""
    found: dict[str, float] = {}
    saves = {"save_s": bench.save, "no_sums_s": bench.save_without_sums}
    raw = bench.root / f"raw_{dist.get_rank()}"
    numbers = sum(parameter.numel() for parameter in bench.parts[0].parameters())
    size = 3 * 4 * numbers // dist.get_world_size()
    memory = memoryview(tensor_files.huge_pages(size // PIECE * PIECE))
    memory[:] = os.urandom(PIECE) * (size // PIECE)

    def write_raw() -> None:
        found["raw_direct_s"], _ = timed_on_all_ranks(
            lambda: bench.raw_write(memory, raw, flags=os.O_DIRECT)
        )
        found["raw_write_s"], _ = timed_on_all_ranks(lambda: bench.raw_write(memory, raw))

    def save_ours() -> None:
        for name in sorted(saves, reverse=bool(number % 4 // 2)):
            found[name], _ = timed_on_all_ranks(saves[name])

    def read_raw() -> None:
        bench.raw_read(memory, raw)
        drop_from_page_cache([raw])
        found["raw_read_s"], _ = timed_on_all_ranks(lambda: bench.raw_read(memory, raw))

    def load_ours() -> None:
        bench.save()
        bench.load()
        drop_from_page_cache(bench.files())
        found["load_s"], _ = timed_on_all_ranks(bench.load)

    def ours() -> None:
        both, found["stall_s"] = timed_on_all_ranks(bench.background)
        found["lost_s"] = both - found["step_s"] * STEPS
        found["copy_s"] = bench.background_without_a_step()

    def torchs() -> None:
        both, found["torch_stall_s"] = timed_on_all_ranks(bench.background_of_torch)
        found["torch_lost_s"] = both - found["step_s"] * STEPS

    bench.save()
    bench.raw_write(memory, raw, flags=os.O_DIRECT)
    for pair in ([write_raw, save_ours], [read_raw, load_ours]):
        for work in pair[:: 1 if number % 2 else -1]:
            work()
    raw.unlink()
    found["step_s"] = timed_on_all_ranks(bench.steps)[0] / STEPS
    for work in [ours, torchs][:: 1 if number % 2 else -1]:
        work()
    found["save / raw"] = found["raw_write_s"] / found["save_s"]
    found["save / direct"] = found["raw_direct_s"] / found["save_s"]
    found["share of sums"] = 1 - found["no_sums_s"] / found["save_s"]
    found["load / raw"] = found["raw_read_s"] / found["load_s"]
    found["copy / torch"] = found["copy_s"] / found["torch_stall_s"]
    found["stall / torch"] = found["stall_s"] / found["torch_stall_s"]
    return found


def as_a_rank(root: Path, rounds: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    bench = Bench(root)
    bench.background()  # allocates the memory of the copies
    for number in range(rounds):
        found = measure(bench, number)
        slowest = [max(each[name] for each in gather_from_all_ranks(found)) for name in found]
        if dist.get_rank() == 0:
            print(json.dumps(dict(zip(found, slowest, strict=True))), flush=True)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # exit handlers abort with FSDP2 on gloo


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rounds", nargs="?", type=int, default=7, metavar="ROUNDS")
    parser.add_argument("worlds", nargs="*", type=int, default=[1, 2], metavar="PROCESSES")
    given = parser.parse_args()
    rounds, worlds = given.rounds, given.worlds
    results: dict[int, list[dict[str, float]]] = {}
    for processes in worlds:
        with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR", ".")) as folder:
            root = Path(folder)
            torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
            command = [sys.executable, "-m", *torchrun, __file__, "rank", str(root), str(rounds)]
            printed = subprocess.run(command, text=True, stdout=subprocess.PIPE, check=True).stdout
        results[processes] = [
            json.loads(line) for line in printed.splitlines() if line.startswith("{")
        ]
        for found in results[processes]:
            print(processes, {name: round(value, 3) for name, value in found.items()})
    columns = " | ".join(f"processes: {processes}" for processes in results)
    print(f"\n| median of {rounds} rounds | {columns} |")
    print(f"|---|{'---|' * len(results)}")
    for name, title in COLUMNS.items():
        medians = [statistics.median(found[name] for found in rows) for rows in results.values()]
        print(f"| {title} | {' | '.join(f'{median:.2f}' for median in medians)} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        as_a_rank(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
