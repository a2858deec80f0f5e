"""What benchmarks share: commands and their processor time, ranks, and training steps."""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rampcli.launch.workers import reserve_port

if TYPE_CHECKING:
    from rampcli.settings.config import Config

RAMPCLI = (sys.executable, "-P", "-m", "rampcli")


def one_thread(threads: int = 1) -> dict[str, str]:
    """Returns this environment with a number of threads per process, one by default."""
    return {**os.environ, "OMP_NUM_THREADS": str(threads)}


def processor_seconds(command: Sequence[str], **options: Any) -> float:
    """Runs a command and returns user and system seconds of it and its children.

    Args:
        options: of `subprocess.run`.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, **{"check": True, "stdout": subprocess.DEVNULL, **options})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run_apart(script: str, *words: object) -> list[float]:
    """Runs a script in a process of its own, and returns the numbers that it prints."""
    command = [sys.executable, script, *map(str, words)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [float(word) for word in done.stdout.split()]


def measure_cases(
    script: str,
    doc: str | None,
    measure: Callable[[str, int], None],
    ranks: Mapping[str, int],
    *,
    rounds: int,
    header: str,
) -> None:
    """Runs a script whose argument is a count of rounds, for each case on ranks of its own.

    Exits if a rank fails.

    Args:
        doc: its docstring.
        measure: takes a case and the rounds, in a process that has joined the ranks over gloo.
        ranks: of each case.
        rounds: the default.
        header: printed above the rows of the cases.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("rounds", nargs="?", type=int, default=rounds, metavar="ROUNDS")
    rounds = parser.parse_args().rounds
    if "RANK" in os.environ:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        measure(os.environ["BENCH_CASE"], rounds)
        sys.stdout.flush()
        os._exit(0)  # exit handlers abort with FSDP2 on gloo
    print(header, flush=True)
    for case, count in ranks.items():
        with reserve_port() as reserved:
            place = {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(reserved.getsockname()[1]),
                "WORLD_SIZE": str(count),
                "BENCH_CASE": case,
            }
            processes = [
                subprocess.Popen(
                    [sys.executable, script, str(rounds)],
                    env={**one_thread(), **place, "RANK": str(rank)},
                )
                for rank in range(count)
            ]
            failed = [process.wait() for process in processes]
        if any(failed):
            raise SystemExit(1)


class Steps:
    """The parts of training steps on the CPU, with the same tokens in each step.

    Args:
        config: settings of the run.
        shape: samples of a micro batch, and tokens of a sample.
        micro_batches: micro batches of a step on each rank.
    """

    def __init__(self, config: "Config", shape: tuple[int, int], *, micro_batches: int = 1) -> None:
        import torch
        import torch.distributed as dist

        from rampcli.data.loader import MicroBatch
        from rampcli.parallel.mesh import build_meshes
        from rampcli.train.build import build_parts
        from rampcli.train.optimizers import build_optimizers
        from rampcli.train.passes import Passes

        config.data.sequence_length = shape[1]
        config.trainer.accumulate_reduce = "last"
        device = torch.device("cpu")
        self.meshes = build_meshes(device, config.parallel)
        self.parts = build_parts(config, self.meshes, device)
        self.passes = Passes(config, self.parts, self.meshes, device)
        self.optimizers = build_optimizers(self.parts, config.optim)
        tokens = torch.randint(config.model.vocabulary, shape)
        self.batch = [MicroBatch(tokens, tokens)] * micro_batches
        self.tokens = tokens.numel() * micro_batches * dist.get_world_size()

    def accumulate(self, **options: Any) -> None:
        """Computes the clipped gradient, with the options of `accumulate_gradient`."""
        from rampcli.train.step import accumulate_gradient

        for part in self.parts:
            part.zero_grad()
        accumulate_gradient(
            self.passes, self.batch, global_tokens=self.tokens, gradient_clip_val=1.0, **options
        )

    def update(self) -> None:
        from rampcli.train.step import update_weights

        update_weights(self.optimizers, lr=1e-4)


def time_on_ranks(work: Callable[[], object]) -> tuple[float, float]:
    """Returns the mean processor seconds of the ranks for some work, and the slowest's seconds."""
    import torch
    import torch.distributed as dist

    dist.barrier()
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    work()
    took = torch.tensor([time.process_time() - cpu_s, time.perf_counter() - wall_s]).double()
    slowest = took[1].clone()
    dist.all_reduce(took)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return took[0].item() / dist.get_world_size(), slowest.item()


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high
