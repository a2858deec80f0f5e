"""Compares loss and time of the recipe `shakespeare_char` with nanoGPT's settings for CPUs.

    python tests/benchmarks/bench_shakespeare.py TEXT [--rounds 2] [--threads 2] [--steps 2000]
    python tests/benchmarks/bench_shakespeare.py TEXT --curves PICTURE.svg

TEXT is Tiny Shakespeare or another text. The first nine tenths of its characters are for training.
The last tenth validates, in consecutive windows of 64 that are the same for all contenders. These
train in turn on the same cores, with another seed in each round:

    nanogpt          model and loop of nanoGPT's published settings for CPUs: 4 layers, 4 heads,
                     width 128, no dropout; AdamW with beta2 0.99, from 1e-3 to 1e-4 by a cosine
                     after 100 steps; 2000 steps of 12 x 64 tokens
    rampcli, ramp    the recipe: the same number of tokens, with a batch that doubles
    rampcli, fixed   the recipe with a batch of 12 throughout

`training` is the wall time of the steps alone. `command` is the wall time of the whole process,
with imports and validation; rampcli's also validates before training and saves a checkpoint. `CPU`
is the processor time of the whole process. The table comes last.

With `--curves`, only rampcli trains, once with the ramp and once without, with the recipe's seed
and a validation every 250 steps. Nothing is timed; the losses are printed and drawn.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from harness import RAMPCLI, one_thread, processor_seconds
from torch import Tensor, nn

from rampcli.config.snapshot import read
from rampcli.estimate.model_size import count_parameters
from rampcli.report.plots import new_figure, save_figure
from rampcli.runs.rows import read_rows

LAYERS, HEADS, WIDTH, CONTEXT, BATCH = 4, 4, 128, 64, 12
LR, MIN_LR, WARMUP_STEPS = 1e-3, 1e-4, 100
FIXED = ["model.rampup_batch_size=null", f"model.global_batch_size={BATCH}"]
WAYS = {"nanogpt": None, "rampcli, ramp": [], "rampcli, fixed": FIXED}


@dataclass(frozen=True, slots=True)
class Run:
    """Result of one training. `loss` is in nats per character."""

    loss: float
    steps: int
    parameters: int
    training_s: float
    command_s: float
    cpu_s: float


class Block(nn.Module):
    """A layer of GPT-2 without biases. Maps [batch, tokens, width] to the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH, bias=False) for _ in range(2))
        self.inputs = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.mixed = nn.Linear(WIDTH, WIDTH, bias=False)
        self.ffn = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH, bias=False),
            nn.GELU(),
            nn.Linear(4 * WIDTH, WIDTH, bias=False),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(2, (HEADS, -1)).transpose(1, 2)
            for part in self.inputs(self.norms[0](hidden)).split(WIDTH, dim=2)
        )
        heads = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.mixed(heads.transpose(1, 2).flatten(2))
        output: Tensor = hidden + self.ffn(self.norms[1](hidden))
        return output


class GPT(nn.Module):
    """Maps tokens and labels, int64 [batch, tokens], to the mean cross entropy in nats."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab_size, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH, bias=False)
        self.output = nn.Linear(WIDTH, vocab_size, bias=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                into_residual = name.endswith(("mixed.weight", "ffn.2.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * LAYERS) if into_residual else 0.02)
        self.output.weight = self.tokens.weight

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        hidden = self.norm(self.blocks(self.tokens(tokens) + self.places.weight[: tokens.shape[1]]))
        return F.cross_entropy(self.output(hidden).flatten(0, 1), labels.flatten())


def train_nanogpt(text: Path, seed: int, steps: int) -> None:
    """Trains, validates, and prints the result as JSON."""
    torch.manual_seed(seed)
    characters = text.read_text(encoding="utf-8")
    numbers = {character: number for number, character in enumerate(sorted(set(characters)))}
    corpus = torch.tensor([numbers[character] for character in characters])
    training, validation = (
        corpus[: first_held_out(len(corpus))],
        corpus[first_held_out(len(corpus)) :],
    )
    model = GPT(len(numbers))
    weights = [[each for each in model.parameters() if each.ndim == ndim] for ndim in (2, 1)]
    groups = [
        {"params": each, "weight_decay": decay}
        for each, decay in zip(weights, (0.1, 0.0), strict=True)
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.99))
    began = time.perf_counter()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        firsts = torch.randint(len(training) - CONTEXT, (BATCH,)).tolist()
        windows = torch.stack([training[first : first + CONTEXT + 1] for first in firsts])
        model(windows[:, :-1], windows[:, 1:]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    training_s = time.perf_counter() - began
    count = (len(validation) - 1) // CONTEXT
    tokens, labels = (
        validation[shift : shift + count * CONTEXT].view(count, CONTEXT) for shift in (0, 1)
    )
    with torch.no_grad():
        pairs = zip(tokens.split(BATCH), labels.split(BATCH), strict=True)
        total = sum(model(some, next_ones).item() * some.numel() for some, next_ones in pairs)
    parameters = sum(weight.numel() for weight in model.parameters()) - model.places.weight.numel()
    print(
        json.dumps(
            {
                "loss": total / tokens.numel(),
                "steps": steps,
                "parameters": parameters,
                "training_s": training_s,
            }
        )
    )


def learning_rate(step: int, steps: int) -> float:
    """Returns the learning rate: a linear warm-up, then a cosine down to `MIN_LR`."""
    if step < WARMUP_STEPS:
        return LR * (step + 1) / (WARMUP_STEPS + 1)
    share = (step - WARMUP_STEPS) / (steps - WARMUP_STEPS)
    return MIN_LR + 0.5 * (1 + math.cos(math.pi * share)) * (LR - MIN_LR)


def first_held_out(characters: int) -> int:
    """Returns where the last tenth begins, as data.split=[90,10,0] places it."""
    return round(characters * 9 / 10)


def pretrain(text: Path, folder: Path, words: Sequence[str]) -> list[str]:
    """Returns the command that trains the recipe on a text and validates on its last tenth."""
    characters = text.read_text(encoding="utf-8")
    settings = {
        "data.path": text.resolve(),
        "run_dir": folder,
        "model.vocab_size": len(set(characters)),
        "trainer.val_samples": (len(characters) - first_held_out(len(characters)) - 1) // CONTEXT,
    }
    overrides = [f"{key}={value}" for key, value in settings.items()]
    return [*RAMPCLI, "pretrain", "--factory", "shakespeare_char", *overrides, *words]


def measure(way: str, text: Path, *, seed: int, threads: int, steps: int, folder: Path) -> Run:
    """Runs one training as a command of its own and returns its result."""
    words = WAYS[way]
    if words is None:
        command = [sys.executable, __file__, str(text), "--seed", str(seed), "--steps", str(steps)]
    else:
        command = pretrain(
            text, folder, [*words, f"seed={seed}", f"trainer.max_samples={steps * BATCH}"]
        )
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as printed:
        cpu_s = processor_seconds(command, env=one_thread(threads), stdout=printed)
        command_s = time.perf_counter() - began
        if words is None:
            printed.seek(0)
            return Run(**json.load(printed), command_s=command_s, cpu_s=cpu_s)
    rows = list(read_rows(folder / "metrics.jsonl"))
    return Run(
        loss=curve_of(folder)[-1][2],
        steps=len(rows),
        parameters=parameters_of(folder),
        training_s=sum(row["step_time_s"] for row in rows),
        command_s=command_s,
        cpu_s=cpu_s,
    )


def curve_of(folder: Path) -> list[tuple[int, int, float]]:
    """Returns optimiser steps, samples and nats per character of each validation of a run."""
    return [
        (each["step"], each["consumed_samples"], each["loss"])
        for each in read_rows(folder / "events.jsonl")
        if each["event"] == "validation"
    ]


def parameters_of(folder: Path) -> int:
    """Returns the number of parameters of a run's model."""
    config = read(folder / "config.yaml")
    return count_parameters(config.model, sequence_length=config.data.sequence_length)


def draw(curves: Mapping[str, Sequence[tuple[int, int, float]]], picture: Path) -> None:
    """Draws the validation losses after the first, over samples and over steps.

    The same losses give the same bytes.
    """
    figure = new_figure()
    figure.set_size_inches(8, 3.2)
    by_samples, by_steps = figure.subplots(1, 2, sharey=True)
    for (way, curve), style in zip(curves.items(), ("black", "0.55"), strict=True):
        steps, samples, losses = zip(*curve[1:], strict=True)
        for axes, places in ((by_samples, samples), (by_steps, steps)):
            axes.plot(
                places,
                losses,
                color=style,
                marker="o",
                markersize=3,
                label=f"{way}: {losses[-1]:.3f} after {steps[-1]:,} steps",
            )
    by_samples.set_xlabel("consumed samples")
    by_steps.set_xlabel("optimiser steps")
    by_samples.set_ylabel("validation loss\n(nats per character)")
    by_samples.legend(frameon=False)
    save_figure(figure, picture)


def show(way: str, runs: Sequence[Run]) -> None:
    """Prints a line of the table: means over the rounds, and the loss of each round."""
    losses = ", ".join(f"{run.loss:.4f}" for run in runs)
    seconds = [
        statistics.mean(getattr(run, what) for run in runs)
        for what in ("training_s", "command_s", "cpu_s")
    ]
    print(
        f"{way:<16} {runs[0].parameters:>10,} {runs[0].steps:>6}"
        + "".join(f" {each:9.1f}" for each in seconds)
        + f"   {losses}"
    )


def show_curves(text: Path, picture: Path, threads: int) -> None:
    """Trains with and without the ramp, then draws and prints the losses."""
    curves = {}
    with tempfile.TemporaryDirectory() as folder:
        for way, words in WAYS.items():
            if words is not None:
                run = Path(folder) / way
                command = pretrain(text, run, [*words, "trainer.val_every_steps=250"])
                processor_seconds(command, env=one_thread(threads))
                curves[way.removeprefix("rampcli, ")] = curve_of(run)
    draw(curves, picture)
    for way, curve in curves.items():
        for steps, samples, loss in curve:
            print(f"{way:<8} {steps:6,} steps {samples:7,} samples   {loss:.4f}")


def main() -> None:
    """Trains all contenders in turn and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--steps",
        type=int,
        default=2000,
        help="steps of 12 samples; the recipe's schedule is made for 2000",
    )
    parser.add_argument("--seed", type=int, help="train nanogpt here, once, with this seed")
    parser.add_argument(
        "--curves",
        type=Path,
        metavar="PICTURE.svg",
        help="draw losses over samples and steps; measure no times",
    )
    given = parser.parse_args()
    if given.seed is not None:
        train_nanogpt(given.text, given.seed, given.steps)
        return
    if given.curves is not None:
        show_curves(given.text, given.curves, given.threads)
        return
    runs: dict[str, list[Run]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1, given.rounds + 1):
            for number, way in enumerate(WAYS):
                place = Path(folder) / f"{seed}-{number}"
                runs[way].append(
                    measure(
                        way,
                        given.text,
                        seed=seed,
                        threads=given.threads,
                        steps=given.steps,
                        folder=place,
                    )
                )
                print(f"{way}, seed {seed}: {runs[way][-1]}", flush=True)
    print(
        f"\n{'':<16} {'parameters':>10} {'steps':>6} {'training':>9} {'command':>9} {'CPU':>9}"
        "   validation, nats per character"
    )
    for way, those in runs.items():
        show(way, those)


if __name__ == "__main__":
    main()
