"""Measures the cost of a training step on the CPU, next to other training programs.

    make bench-peers    # installs the others
    python tests/benchmarks/bench_step.py [--threads 1 2] [--accumulate 1 4] [--contenders NAME ...]
                                          [--rounds 10] [--turn-seconds 3] [--processes 2]

All contenders train the same Llama (`peers/shape.py`) on the same number of random tokens per
step: in fp32, with fused AdamW, gradient clipping and torch's `scaled_dot_product_attention`. Each
is a command with a terminal of its own. They take turns of some seconds (`contest.py`).

    minimal             the usual minimal loop in plain PyTorch (`peers/llama.py`)
    transformers        transformers' Llama in the same loop
    trainer             transformers' Llama in its Trainer, which shows its progress, logs every
                        10 steps and saves every 500
    litgpt              litgpt's GPT and loss in its loop over Fabric
    torchtitan          torchtitan's Llama in the minimal loop
    rampcli             `rampcli pretrain`, the whole command: it shows its progress, logs every
                        step and saves every 500

A name with `-compiled` goes through torch.compile; rampcli sets trainer.compile. Processor time is
user and system time of all processes of a command. A ratio is the minimal loop's time per step
over the contender's: above 1 the contender is faster. The first ratio, `quiet`, compares lower
quartiles of the steps, which leave saves out. The second compares means, with the quartiles of the
rounds in brackets. `minimal-2` is the minimal loop once more: its distance from 1 is chance. All
contenders get this environment, so that GOMP_SPINCOUNT and the like apply to all.

With `--processes 2`, two processes of one thread each train on this machine, with a micro batch
each:

    minimal-apart       two independent minimal loops at the same time: the most samples per second
                        that two processes can reach
    rampcli-apart       two independent commands `rampcli pretrain`
    ddp, fsdp2          the minimal loop under torchrun, with DistributedDataParallel, or with
                        fully_shard on each layer and the whole
    rampcli-replicated  one command with trainer.devices=2 and parallel.data_parallel_shard_size=1
    rampcli-sharded     the same with parallel.data_parallel_shard_size=null
    rampcli-tensor      the same with parallel.tensor_parallel_size=2 and one micro batch of both
                        processes' samples

Their ratios are samples per second, and below that samples per second of processor time, over
those of the two independent commands, minimal and rampcli. A ratio of 1 means that communication
is free.
"""

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from contest import Command, Contender, EndedError, cpu_ratio, take_turns, wall_ratio
from peers import shape

PEERS = Path(__file__).with_name("peers") / "train.py"
BASE = "minimal"
ALONE = [
    "minimal",
    "transformers",
    "trainer",
    "litgpt",
    "torchtitan",
    "rampcli",
    "minimal-compiled",
    "rampcli-compiled",
]
APART = {"minimal": "minimal-apart", "rampcli": "rampcli-apart"}
MESHES = {
    "replicated": ["parallel.data_parallel_shard_size=1"],
    "sharded": ["parallel.data_parallel_shard_size=null"],
    "tensor": [
        "parallel.tensor_parallel_size=2",
        f"data.micro_batch_size={2 * shape.MICRO_BATCH_SIZE}",
    ],
}
TOGETHER = [*APART.values(), "ddp", "fsdp2", *(f"rampcli-{how}" for how in MESHES)]
TOGETHER += ["rampcli-tensor-compiled"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]


def rampcli(folder: Path, *, threads: int, accumulate: int, words: Sequence[str] = ()) -> Command:
    """Returns the command `rampcli pretrain` with `accumulate` micro batches a step per process."""
    processes = 2 if "trainer.devices=2" in words else 1
    settings = {
        "run_dir": folder,
        "model.num_layers": shape.LAYERS,
        "model.hidden_size": shape.DIM,
        "model.ffn_hidden_size": shape.FFN,
        "model.num_attention_heads": shape.HEADS,
        "model.num_query_groups": shape.GROUPS,
        "model.vocab_size": shape.VOCAB_SIZE,
        "model.rampup_batch_size": "null",
        "model.global_batch_size": shape.MICRO_BATCH_SIZE * accumulate * processes,
        "data.micro_batch_size": shape.MICRO_BATCH_SIZE,
        "data.sequence_length": shape.SEQUENCE_LENGTH,
        "optim.optimizer": "adamw",
        "optim.lr": shape.LR,
        "trainer.num_nodes": 1,
        "trainer.max_samples": "null",
        "trainer.max_steps": 200_000,
        "trainer.val_samples": 0,
        "trainer.gradient_clip_val": shape.CLIP,
        "checkpoint.every_steps": shape.SAVE_STEPS,
    }
    settings |= dict(word.split("=") for word in words)
    return Command(
        words=[sys.executable, "-m", "rampcli", "pretrain", "--factory", "llama3_tiny", "data=mock"]
        + [f"{key}={value}" for key, value in settings.items()],
        rows=folder / "metrics.jsonl",
        environment={"OMP_NUM_THREADS": str(threads)},
    )


def peer(
    name: str, folder: Path, *, threads: int, accumulate: int, words: Sequence[str] = ()
) -> Command:
    """Returns a command of `peers/train.py`. ddp and fsdp2 run as two processes."""
    folder.mkdir()
    rows = folder / "rows"
    return Command(
        words=[
            *(TORCHRUN if name in ("ddp", "fsdp2") else [sys.executable]),
            str(PEERS),
            name,
            str(rows),
            f"--accumulate={accumulate}",
            *words,
        ],
        rows=rows,
        environment={"OMP_NUM_THREADS": str(threads)},
    )


def contender(name: str, folder: Path, *, threads: int, accumulate: int) -> Contender:
    """Returns a contender by its name, with files in folders of its own."""
    is_compiled = name.endswith("-compiled")
    who, _, how = name.removesuffix("-compiled").partition("-")
    processes = 2 if how in MESHES or who in ("ddp", "fsdp2") else 1
    commands = []
    for index in range(2 if how == "apart" else 1):
        here = folder / f"{name}-{index}"
        if who == "rampcli":
            words = [f"trainer.compile={str(is_compiled).lower()}"]
            words += ["trainer.devices=2", *MESHES[how]] if how in MESHES else []
            commands.append(rampcli(here, threads=threads, accumulate=accumulate, words=words))
        else:
            words = ["--compile"] if is_compiled else []
            commands.append(peer(who, here, threads=threads, accumulate=accumulate, words=words))
    return Contender(
        name=name,
        commands=commands,
        samples_per_row=shape.MICRO_BATCH_SIZE * accumulate * processes,
    )


def hold_contest(
    names: Sequence[str], *, threads: int, accumulate: int, rounds: int, turn_s: float
) -> tuple[list[Contender], dict[str, str]]:
    """Returns the contenders that ran, measured, and why the others did not run."""
    running: list[Contender] = []
    absent: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name in names:
                running.append(
                    contender(name, Path(folder), threads=threads, accumulate=accumulate)
                )
                try:
                    running[-1].start()
                except EndedError as error:
                    running.pop().end()
                    absent[name] = str(error)
            take_turns(running, rounds=rounds, turn_s=turn_s)
        finally:
            for each in running:
                each.end()
    return running, absent


def show_steps(ran: Sequence[Contender]) -> None:
    """Prints the table of single processes."""
    base = next((each for each in ran if each.name == BASE), ran[0])
    print(
        f"{'':<18} {'':>5} {'CPU ms/step':>15} {'ms/step':>15}"
        f"   {'CPU time of ' + base.name + ' / its':<36} time of {base.name} / its"
    )
    print(
        f"{'':<18} {'steps':>5} {'quiet':>8} {'mean':>6} {'quiet':>8} {'mean':>6}"
        + 2 * f"   {'quiet  mean  (quartiles of rounds)':<36}"
    )
    for each in ran:
        times = [
            1e3 * each.samples_per_row * s
            for s in (each.quiet_cpu_s(), each.cpu_s(), each.quiet_wall_s(), each.wall_s())
        ]
        shown = f"{times[0]:8.1f} {times[1]:6.1f} {times[2]:8.1f} {times[3]:6.1f}"
        ratios = f"{cpu_ratio(each, base)!s:<36} {wall_ratio(each, base)}"
        print(f"{each.name:<18} {each.rows():5} {shown}   {ratios}")


def show_pairs(ran: Sequence[Contender]) -> None:
    """Prints the table of two processes."""
    by_name = {each.name: each for each in ran}
    bases = [by_name[apart] for apart in APART.values() if apart in by_name]
    print(
        f"{'':<18} {'':>7} {'samples/s':>13} {'CPU ms/sample':>15}"
        + "".join(f"   {'of ' + base.name:<36}" for base in bases)
    )
    print(
        f"{'':<18} {'samples':>7} {'quiet':>7} {'mean':>5} {'quiet':>8} {'mean':>6}"
        + len(bases) * f"   {'quiet  mean  (quartiles of rounds)':<36}"
    )
    for each in ran:
        print(
            f"{each.name:<18} {each.rows() * each.samples_per_row:7}"
            f" {1 / each.quiet_wall_s():7.2f} {1 / each.wall_s():5.2f}"
            f" {1e3 * each.quiet_cpu_s():8.1f} {1e3 * each.cpu_s():6.1f}"
            + "".join(f"   {wall_ratio(each, base)!s:<36}" for base in bases)
        )
        print(
            f"{'':<18} {'by processor time':<37}"
            + "".join(f"   {cpu_ratio(each, base)!s:<36}" for base in bases)
        )


def main() -> None:
    """Runs a contest for each number of threads and micro batches, and prints its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, choices=(1, 2), default=1)
    parser.add_argument("--threads", type=int, nargs="+", default=[1], help="threads per process")
    parser.add_argument(
        "--accumulate", type=int, nargs="+", default=[1], help="micro batches per step"
    )
    parser.add_argument("--contenders", nargs="+", metavar="NAME", help="names listed above")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--turn-seconds", type=float, default=3.0)
    given = parser.parse_args()
    # An exit handler ends the contenders, so that none is left running or stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    names = given.contenders or (ALONE if given.processes == 1 else TOGETHER)
    for threads in given.threads:
        for accumulate in given.accumulate:
            print(
                f"\n{given.processes} process{'es' if given.processes > 1 else ''}"
                f" of {threads} thread{'s' if threads > 1 else ''},"
                f" {accumulate} x {shape.MICRO_BATCH_SIZE} samples of"
                f" {shape.SEQUENCE_LENGTH} tokens per step; {given.rounds} rounds of turns of"
                f" {given.turn_seconds} s\n",
                flush=True,
            )
            ran, absent = hold_contest(
                names,
                threads=threads,
                accumulate=accumulate,
                rounds=given.rounds,
                turn_s=given.turn_seconds,
            )
            (show_steps if given.processes == 1 else show_pairs)(ran)
            for name, reason in absent.items():
                print(f"{name} did not run: {reason.splitlines()[-1]}", flush=True)


if __name__ == "__main__":
    main()
