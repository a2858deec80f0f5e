"""Measures training on one GPU, next to transformers and a minimal loop, all of them compiled.

    PYTHONPATH=. python tests/benchmarks/bench_gpu.py         # Llama 3.2 1B in bf16; 8 minutes
    PYTHONPATH=. python tests/benchmarks/bench_gpu.py --tiny  # a small model on the CPU, eager

Each contender runs in a process of its own, one after the other. rampcli trains as `rampcli
pretrain` does on random tokens: with its log, a ramp from one micro batch a step to eight in the
same processes, and checkpoints in the background. The others take steps of one micro batch under
autocast, with fused AdamW and gradient clipping. MFU is the share of this device's speed in bf16
matrix products of 8192 x 8192, which is measured first. The table comes last.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch

from rampcli.config.compose import compose
from rampcli.estimate.model_size import flops_per_token
from rampcli.launch.run import write_run_files
from rampcli.planning.resolve import resolve
from rampcli.runs.directory import RunDirectory
from rampcli.runs.rows import read_rows
from rampcli.settings.config import Config

PEERS = ("transformers", "minimal")
FULL = {4096: 2, 8192: 1}
"""Micro batch size for each sequence length in tokens."""
TINY = {32: 2}
ACCUMULATE, STEPS = 8, {1: 24, 8: 10}
"""Steps for each number of micro batches a step. The first quarter of them is not counted."""
TINY_MODEL = ("model=llama3_tiny", "model.vocab_size=512", "model.num_layers=2")


def settings(sequence_length: int, *, tiny: bool, words: tuple[str, ...] = ()) -> Config:
    """Returns the settings of rampcli's run. The other contenders take the model from them."""
    micro, first = (TINY if tiny else FULL)[sequence_length], STEPS[1]
    samples = first * micro
    return compose(
        *(
            TINY_MODEL
            if tiny
            else ("model=llama32_1b", "trainer.precision=bf16", "trainer.compile=true")
        ),
        "data=mock",
        f"data.sequence_length={sequence_length}",
        f"data.micro_batch_size={micro}",
        f"model.global_batch_size={ACCUMULATE * micro}",
        f"model.rampup_batch_size=[{micro},{(ACCUMULATE - 1) * micro},{samples}]",
        "rampup.at_boundary=continue",
        "trainer.num_nodes=1",
        "trainer.devices=1",
        "trainer.val_samples=0",
        f"trainer.max_samples={samples + STEPS[ACCUMULATE] * ACCUMULATE * micro}",
        f"checkpoint.every_steps={first + STEPS[ACCUMULATE] // 2}",
        "checkpoint.async=true",
        *words,
    )


def run_rampcli(config: Config, folder: str) -> dict[str, Any]:
    """Trains as a worker does and returns the times of steps, compilation and checkpoints."""
    from rampcli.train.stopping import StopRequest
    from rampcli.worker.assemble import build_trainer, train

    run = RunDirectory(Path(folder))
    write_run_files(run, resolve(config), [])
    stop = StopRequest(exits_at_second_signal=True)
    train(run, stop, started=time.time(), build=build_trainer)
    rows, events = list(read_rows(run.metrics)), list(read_rows(run.events))
    by_batches = {
        batches: [row["step_time_s"] for row in rows if row["accumulate_grad_batches"] == batches]
        for batches in STEPS
    }
    compiled = [event["compile_s"] for event in events if event["event"] == "compile"]
    saved = next(event for event in events if event["event"] == "checkpoint")
    return {
        "step_s": settled(by_batches[1]),
        "accumulated_step_s": settled(by_batches[ACCUMULATE]),
        "first_accumulated_step_s": by_batches[ACCUMULATE][0],
        "compile_s": sum(compiled),
        "stall_s": saved["stall_s"],
        "save_s": saved["save_s"],
    }


def run_peer(name: str, config: Config, device: torch.device) -> dict[str, Any]:
    """Takes steps of one micro batch and returns their times."""
    torch.manual_seed(0)
    with device:
        model = torch.compile(build(name, config), disable=not config.trainer.compile)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    shape = (config.data.micro_batch_size, config.data.sequence_length + 1)
    times = []
    for _ in range(STEPS[1]):
        began = time.perf_counter()
        window = torch.randint(config.model.vocab_size, shape, device=device)
        with torch.autocast(
            device.type, torch.bfloat16, enabled=config.trainer.precision == "bf16"
        ):
            if name == "minimal":
                loss = model(window[:, :-1], window[:, 1:])
            else:
                # transformers shifts the labels itself.
                loss = model(input_ids=window[:, :-1], labels=window[:, :-1]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        times.append(time.perf_counter() - began)
    return {"step_s": settled(times), "first_step_s": times[0]}


def build(name: str, config: Config) -> torch.nn.Module:
    """Returns the model of the minimal loop, or transformers' Llama."""
    from peers.llama import Llama, transformers_llama

    model = config.model
    shape = {
        "dim": model.hidden_size,
        "layers": model.num_layers,
        "heads": model.num_attention_heads,
        "groups": model.key_heads,
        "ffn": model.ffn_hidden_size,
        "vocab_size": model.vocab_size,
        "sequence_length": config.data.sequence_length,
    }
    if name == "transformers":
        return transformers_llama(**shape, tied=model.tie_embeddings)
    llama = Llama(**shape)
    if model.tie_embeddings:
        llama.output.weight = llama.embedding.weight
    return llama


def settled(times: list[float]) -> float:
    """Returns the median without the first quarter."""
    return median(times[len(times) // 4 :])


def ceiling_flops_per_s(device: torch.device, *, size: int) -> float:
    """Returns the speed of bf16 matrix products, the best of ten."""
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    times = []
    for _ in range(10):
        began = time.perf_counter()
        (left @ right)[0, 0].item()
        times.append(time.perf_counter() - began)
    return 2 * size**3 / min(times)


def results(*, tiny: bool) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yields the name, sequence length and figures of each contender."""
    for sequence_length in TINY if tiny else FULL:
        for name in ("rampcli", *PEERS):
            if (
                name in sys.modules
                or name in ("rampcli", "minimal")
                or importlib.util.find_spec(name) is not None
            ):
                words = [
                    sys.executable,
                    __file__,
                    "--run",
                    name,
                    "--sequence-length",
                    str(sequence_length),
                    *(["--tiny"] if tiny else []),
                ]
                ended = subprocess.run(words, text=True, stdout=subprocess.PIPE, check=False)
                said = (
                    json.loads(ended.stdout.splitlines()[-1])
                    if ended.returncode == 0
                    else {"failed": ended.returncode}
                )
            else:
                said = {"failed": "not installed"}
            print(f"{name} at {sequence_length} tokens: {said}", flush=True)
            yield name, sequence_length, said


def show(found: dict[tuple[str, int], dict[str, Any]], ceiling: float, *, tiny: bool) -> None:
    """Prints the table."""
    print(f"\nmatrix products in bf16: {ceiling / 1e12:.1f} TFLOP/s, the basis of MFU below")
    print(
        "\ncontender     sequence  micro batch  accumulate   ms/step   tokens/s    MFU  peak GiB"
        "  of transformers  of minimal"
    )
    for (name, sequence_length), said in found.items():
        if "failed" in said:
            print(f"{name:<13} {sequence_length:8}  failed: {said['failed']}")
            continue
        config = settings(sequence_length, tiny=tiny)
        micro = (TINY if tiny else FULL)[sequence_length]
        others = [found[peer, sequence_length].get("step_s") for peer in PEERS]
        ratios = "  ".join(
            "             -" if other is None else f"{other / said['step_s']:14.2f}"
            for other in others
        )
        for batches, step_s in ((1, said["step_s"]), (ACCUMULATE, said.get("accumulated_step_s"))):
            if step_s is not None:
                tokens_per_s = batches * micro * sequence_length / step_s
                mfu = (
                    tokens_per_s
                    * flops_per_token(config.model, sequence_length=sequence_length)
                    / ceiling
                )
                print(
                    f"{name:<13} {sequence_length:8} {micro:12} {batches:11} {1e3 * step_s:9.1f}"
                    f" {tokens_per_s:10,.0f} {mfu:6.3f} {said['peak_gib']:9.1f}"
                    + (f"  {ratios}" if batches == 1 else "")
                )
        if name == "rampcli":
            jump = said["first_accumulated_step_s"] / said["accumulated_step_s"]
            print(
                f"{'':<13} the first step of the larger batch took {jump:.2f} times the median;"
                f" compiled in {said['compile_s']:.1f} s"
            )
            print(
                f"{'':<13} a checkpoint was written in {said['save_s']:.2f} s,"
                f" of which training waited {said['stall_s']:.3f} s"
            )


def main() -> None:
    """Runs one contender, or all of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--run", choices=("rampcli", *PEERS), help=argparse.SUPPRESS)
    parser.add_argument("--sequence-length", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    device = torch.device("cpu" if given.tiny else "cuda")
    if given.run is None:
        ceiling = ceiling_flops_per_s(device, size=512 if given.tiny else 8192)
        found = {
            (name, sequence_length): said
            for name, sequence_length, said in results(tiny=given.tiny)
        }
        show(found, ceiling, tiny=given.tiny)
        return
    with tempfile.TemporaryDirectory() as folder:
        words = (f"run_dir={folder}", f"trainer.accelerator={'cpu' if given.tiny else 'gpu'}")
        config = settings(given.sequence_length, tiny=given.tiny, words=words)
        said = (
            run_rampcli(config, folder)
            if given.run == "rampcli"
            else run_peer(given.run, config, device)
        )
    said["peak_gib"] = 0.0 if given.tiny else torch.cuda.max_memory_allocated() / 2**30
    print(json.dumps(said), flush=True)
    os._exit(0)  # exit handlers abort with FSDP


if __name__ == "__main__":
    main()
