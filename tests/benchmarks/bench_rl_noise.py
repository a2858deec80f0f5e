"""Splits the noise of the gradient of reinforcement learning: between prompts, and within them.

    python tests/benchmarks/bench_rl_noise.py FOLDER [--seeds 1 2 3] [--steps 0 50 200]

For each seed, trains the recipe `sort_digits` and then `rampcli rl` from its weights, in processes
with one thread. With the weights of some steps (0: those that `rampcli rl` starts from), it then
draws new prompts and responses, and measures the gradient of one prompt with R = 4, 8, 16 and 32
responses: rewards, advantages and loss are those of a step, before clipping. Advantages compare the
responses of a prompt with each other, so each R is measured, and on prompts of its own. Runs and
measurements that FOLDER holds are read, not repeated.

A prompt i is answered by two independent groups of R responses, with the gradients g_i and h_i;
s_i is their mean. Summed over the weights, these estimates have no bias:

    |G|^2       =  mean over i != k of s_i . s_k
    between(R)  =  mean of g_i . h_i  -  |G|^2        prompts differ in their expected gradients
    within(R)   =  mean of |g_i - h_i|^2 / 2          groups of one prompt differ

    variance of the gradient of P prompts with R responses = (between(R) + within(R)) / P

Two kinds of advantages are measured on the same responses:

    none     reward - mean of the group, as in `sort_digits`. The gradient is then on average
             (R - 1) / R of the one with an exact mean, and is divided by this, so G and between do
             not depend on R, and are estimated from the prompts of all R together. It is a
             U-statistic of order 2 (Hoeffding, 1948), and so within(R) = a / R + b / (R (R - 1)),
             where b is the noise of the mean of the group.
    group    the same, divided by the deviation of the group: the default of other recipes. Its
             expectation depends on R, so G and between are estimated for each R alone.

Gradients are sums over the tokens of a group. A step also divides by its tokens, which changes no
ratio if all responses are equally long: the first table shows mean and deviation of the length.
The second table is for `none`:

    flat groups    share of groups whose rewards are all equal, which have no gradient
    noise scale    R (between + within) / |G|^2 with R = 16: the number of responses with which the
                   variance of the gradient is |G|^2. Unknown if a seed's |G|^2 is less than twice
                   its error.
    within 4       R within(R) with R = 4 over its mean with larger R. It would be 1 if b were 0.
    between R      between / (between + within), the share of the noise that more responses leave
    noise R        noise at an equal number of responses, R (between + within), over that of R = 16

The third table shows by how much `group` changes the share `between R`. Both are estimated for each
R alone here, because the errors of the same prompts and responses then nearly cancel.

`+-` is a standard error: of a seed, by the jackknife over blocks of prompts; of the mean over the
seeds, from theirs. It does not say how much other runs would differ.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_sort_digits import train
from numpy.typing import NDArray
from torch import Tensor

from rampcli.checkpoint.load import open_run, read_weights
from rampcli.config import snapshot
from rampcli.data.prompts import open_prompts
from rampcli.parallel.mesh import build_meshes
from rampcli.rl.generator import Generator, Rollout
from rampcli.rl.objective import Objective, group_advantages
from rampcli.rl.passes import PolicyPasses, batch_of
from rampcli.rl.scorer import Scorer
from rampcli.runs.directory import RunDirectory
from rampcli.settings.config import Config
from rampcli.settings.rl import max_response_tokens
from rampcli.train.build import build_parts
from rampcli.train.step import local_gradients
from rampcli.worker.join import join_ranks

RESPONSES = (4, 8, 16, 32)
USUAL = RESPONSES.index(16)
SCALES = ("none", "group")
BLOCKS = 16
"""Blocks of prompts, one of which the jackknife leaves out."""
PAIRS = 4096
"""Pairs of prompt and response with which a seed, a step and R are measured."""
LEAST_SIGNAL = 2
"""Least quotient of |G|^2 and its standard error with which a seed's noise scale is known."""
HEADS = (
    "|G|^2",
    "noise scale",
    "within 4",
    *(f"{kind} {each}" for kind in ("between", "noise") for each in RESPONSES),
)
EVERY_STEPS = 50
"""Steps between the checkpoints of a run."""
UNSEEN = 1_000_000
"""First sample that is measured, which no run trains on."""
MEASUREMENT_SEED = 2
"""Added to the seed of the run, so that responses are drawn with other random numbers."""


def train_runs(folder: Path, seed: int) -> tuple[RunDirectory, RunDirectory]:
    """Trains the supervised run and the one with rewards, unless they are complete."""
    start, run = (RunDirectory(folder / f"{kind}_{seed}") for kind in ("start", "rl"))
    train("pretrain", start, f"seed={seed}")
    saving = (f"checkpoint.every_steps={EVERY_STEPS}", "checkpoint.keep_last=8")
    train("rl", run, f"model.init_from={start.path}", f"seed={seed}", *saving)
    return start, run


class Gradients:
    """Gradients of single groups of responses, with the weights of a checkpoint.

    Args:
        config: settings of the run with rewards.
        source: run that holds the checkpoint.
        step: step of the checkpoint, or None for the newest.
    """

    def __init__(
        self, config: Config, device: torch.device, source: Path, *, step: int | None
    ) -> None:
        meshes = build_meshes(device, config.parallel)
        parts = build_parts(config, meshes, device, filled=False)
        (self.model,) = parts
        _, checkpoint = open_run(source, step=step)
        read_weights(checkpoint, dict(self.model.named_parameters()))
        objective = Objective(config.rl, max_response_tokens(config))
        self.passes = PolicyPasses(
            config, parts, meshes, device, objective=objective, reference=None
        )
        self.size = sum(weight.numel() for weight in self.model.parameters())
        scorer = Scorer(config.rl.reward, deadline_s=config.rl.reward_deadline_s)
        self.generator = Generator(config, open_prompts(config), scorer)

    def of_group(self, rollout: Rollout, advantages: Tensor, group: int, *, into: Tensor) -> None:
        """Computes the gradient of the summed loss of a group.

        Args:
            advantages: fp32 [groups, responses].
            into: receives the gradient.
        """
        responses = advantages.shape[1]
        pairs = slice(group * responses, (group + 1) * responses)
        batch = batch_of(rollout, advantages.flatten(), pairs, is_first_update=True, multiple=1)
        self.model.zero_grad()
        self.passes.forward_backward([batch], scale=1.0)
        torch.cat([one.flatten() for one in local_gradients([self.model], copies=True)], out=into)


def measure_block(
    gradients: Gradients, samples: range, *, responses: int
) -> tuple[dict[str, NDArray], Tensor]:
    """Returns sums over prompts: |g|^2 + |h|^2 and g . h [scales], and s [scales, weights].

    Also returns the mean reward, the share of flat groups, and moments of the lengths.
    """
    generator = gradients.generator
    rollout = generator.generate(
        gradients.model,
        generator.training_questions(np.array(samples)),
        step=0,
        seed=generator.config.seed + MEASUREMENT_SEED,
        generations=2 * responses,
    )
    rewards = rollout.rewards.view(-1, responses)
    advantages, divided = (group_advantages(rewards, scale=scale) for scale in SCALES)
    largest = advantages.abs().amax(dim=1)
    is_flat = largest == 0
    # The advantages of a group are divided by one number, and so is its gradient.
    ratios = torch.where(is_flat, 0.0, divided.abs().amax(dim=1) / largest)
    factors = torch.stack([torch.full_like(ratios, 1 / (responses - 1)), ratios / responses])
    inner, total = torch.zeros(len(SCALES), 2, 2), torch.zeros(len(SCALES), gradients.size)
    both = torch.zeros(2, gradients.size)
    for groups in torch.arange(2 * len(samples)).view(-1, 2).tolist():
        for gradient, group in zip(both, groups, strict=True):
            if is_flat[group]:
                gradient.zero_()
            else:
                gradients.of_group(rollout, advantages, group, into=gradient)
        of_scales = factors[:, groups]  # [scales, 2]
        inner += torch.einsum("sg,gh,sh->sgh", of_scales, both @ both.T, of_scales)
        total.addmm_(of_scales, both, alpha=0.5)
    lengths = rollout.responses.lengths.double()
    sums = {
        "squares": inner.diagonal(dim1=1, dim2=2).sum(dim=1),
        "products": inner[:, 0, 1],
        "flat": is_flat.double().mean(),
        "reward": rewards.mean(),
        "length": lengths.mean(),
        "length_sq": lengths.square().mean(),
    }
    return {name: value.numpy() for name, value in sums.items()}, total


def measure(gradients: Gradients) -> dict[str, Any]:
    """Returns what `figures` and `show` read.

    squares, products: sums as of `measure_block`. [scales, R, blocks]
    gram: inner products of the sums of s over blocks. [scales, R x blocks, R x blocks]
    """
    blocks, totals, first = [], [], UNSEEN
    for responses, _ in product(RESPONSES, range(BLOCKS)):
        samples = range(first, first + prompts_per_block(responses))
        sums, total = measure_block(gradients, samples, responses=responses)
        blocks.append(sums)
        totals.append(total)
        first = samples.stop
    shape = len(RESPONSES), BLOCKS, -1
    found = {
        name: np.moveaxis(np.array([sums[name] for sums in blocks]).reshape(shape), 2, 0)
        for name in blocks[0]
    }
    stacked, length = torch.stack(totals, dim=1), found["length"].mean()
    return {
        "squares": found["squares"].tolist(),
        "products": found["products"].tolist(),
        "gram": (stacked @ stacked.mT).tolist(),
        "reward": found["reward"].mean(),
        "flat": found["flat"].mean(axis=(0, 2)).tolist(),
        "length": [length, math.sqrt(max(0.0, found["length_sq"].mean() - length**2))],
    }


def prompts_per_block(responses: int) -> int:
    return PAIRS // (2 * responses * BLOCKS)


def components(
    found: Mapping, scale: str, *, kept: Sequence[int], pooled: bool
) -> tuple[NDArray, NDArray, NDArray]:
    """Returns |G|^2, between and within, each [R], from some blocks of prompts.

    Args:
        pooled: estimate |G|^2 and between from the prompts of all R together.
    """
    number = SCALES.index(scale)
    counts = np.array([prompts_per_block(each) * len(kept) for each in RESPONSES])
    squares, products = (
        np.array(found[name])[number][:, kept].sum(axis=1) for name in ("squares", "products")
    )
    gram = np.array(found["gram"])[number].reshape(2 * (len(RESPONSES), BLOCKS))
    inner = gram[:, kept][:, :, :, kept].sum(axis=(1, 3))
    # Sums over pairs of different prompts, and the number of these pairs.
    others = inner - np.diag((squares + 2 * products) / 4)
    pairs = np.outer(counts, counts) - np.diag(counts)
    within = (squares / 2 - products) / counts
    if pooled:
        signal = np.full_like(within, others.sum() / pairs.sum())
        return signal, products.sum() / counts.sum() - signal, within
    signal = np.diag(others) / np.diag(pairs)
    return signal, products / counts - signal, within


def figures(found: Mapping, *, kept: Sequence[int]) -> NDArray:
    """Returns the figures of a row of `none`, from some blocks of prompts. [HEADS]"""
    signal, between, within = components(found, "none", kept=kept, pooled=True)
    noise, alone = (np.array(RESPONSES) * one for one in (between + within, within))
    first = signal[USUAL], noise[USUAL] / signal[USUAL], alone[0] / alone[1:].mean()
    return np.array([*first, *between / (between + within), *noise / noise[USUAL]])


def share_changes(found: Mapping, *, kept: Sequence[int]) -> NDArray:
    """Returns by how much `group` changes the share of the noise between prompts. [R]"""
    shares = []
    for scale in SCALES:
        _, between, within = components(found, scale, kept=kept, pooled=False)
        shares.append(between / (between + within))
    without, divided = shares
    return divided - without


def with_errors(estimate: Callable[..., NDArray], found: Mapping) -> NDArray:
    """Returns the figures of an estimate and their standard errors, [2, figures]."""
    blocks = range(BLOCKS)
    without = [
        estimate(found, kept=[other for other in blocks if other != block]) for block in blocks
    ]
    errors = np.sqrt((BLOCKS - 1) * np.var(without, axis=0))
    return np.array([estimate(found, kept=blocks), errors])


def known_figures(found: Mapping) -> NDArray:
    """Returns `figures` with errors, with NaN for a noise scale that is unknown."""
    row = with_errors(figures, found)
    signal, error = row[:, HEADS.index("|G|^2")]
    if signal < LEAST_SIGNAL * error:
        row[:, HEADS.index("noise scale")] = np.nan
    return row


def show_table(
    found: Mapping[tuple[int, int], Mapping],
    heads: Sequence[str],
    row_of: Callable[[Mapping], NDArray],
) -> None:
    """Prints a row for each step and seed, and one for the mean over the seeds of a step."""
    print(f"{'step':>5} {'seed':>5}" + "".join(f"{head:>16}" for head in heads))
    for step in sorted({step for step, _ in found}):
        rows = {
            str(seed): row_of(each)
            for (other, seed), each in sorted(found.items())
            if other == step
        }
        values, errors = np.array([*rows.values()]).swapaxes(0, 1)
        rows["mean"] = np.array(
            [values.mean(axis=0), np.sqrt((errors**2).sum(axis=0)) / len(values)]
        )
        for seed, row in rows.items():
            print(f"{step:5} {seed:>5}" + "".join(f"{cell(*pair):>16}" for pair in row.T))


def cell(value: float, error: float) -> str:
    if math.isnan(value):
        return "unknown"
    decimals = 0 if value >= 100 else 1 if value >= 10 else 3
    return f"{value:.{decimals}f} +- {error:.{decimals}f}"


def show(found: Mapping[tuple[int, int], Mapping]) -> None:
    """Prints the tables of all steps and seeds."""
    print(
        f"{'step':>5} {'seed':>5} {'reward':>7} {'length':>13}   flat groups with R = {RESPONSES}"
    )
    for (step, seed), each in sorted(found.items()):
        length, deviation = each["length"]
        flat = " ".join(f"{share:6.3f}" for share in each["flat"])
        print(f"{step:5} {seed:5} {each['reward']:7.3f} {length:5.2f} +- {deviation:4.2f}   {flat}")
    print("\nnone")
    show_table(found, HEADS, known_figures)
    print("\ngroup - none")
    changes = [f"between {each}" for each in RESPONSES]
    show_table(found, changes, lambda each: with_errors(share_changes, each))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 50, 200])
    given = parser.parse_args()
    folder, found, device = given.folder.resolve(), {}, None
    for seed in given.seeds:
        start, run = train_runs(folder, seed)
        config = snapshot.read(run.config)
        device = device or join_ranks(config.trainer, timeout_s=config.launch.start_timeout_s)
        for step in given.steps:
            file = folder / f"noise_{seed}_{step}_{PAIRS}.json"
            if not file.exists():
                source = start.path if step == 0 else run.path
                gradients = Gradients(config, device, source, step=step or None)
                began = time.process_time()
                file.write_text(json.dumps(measure(gradients)))
                took_s = time.process_time() - began
                print(f"seed {seed}, step {step}: {took_s:.0f} s of processor time", flush=True)
            found[step, seed] = json.loads(file.read_text())
    show(found)


if __name__ == "__main__":
    main()
