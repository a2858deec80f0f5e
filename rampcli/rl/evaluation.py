"""Evaluates the policy on held-out prompts."""

from dataclasses import replace

import torch
import torch.distributed as dist

from rampcli.models.decoder import Decoder
from rampcli.rl.generator import Generator
from rampcli.rl.metrics import SOLVED
from rampcli.rl.stopping import Stops

DRAWN_SEED = 1
"""Added to the seed, so that evaluations draw other numbers than training."""


def evaluate(
    generator: Generator,
    model: Decoder,
    *,
    prompts: int,
    at_once: int,
    step: int,
    device: torch.device,
    stops: Stops,
) -> dict[str, float | str | None]:
    """Returns the mean reward of held-out prompts, and the share of them that is solved.

    Responses without a reward are left out, and counted as `unscored`. `reason` says why this rank
    could not score its last one.

    Each prompt is answered with the likeliest tokens (`greedy`), and once as in training
    (`sampled`). The ranks divide the prompts among them. Every rank calls this.

    Args:
        prompts: number of prompts, from the first one.
        at_once: prompts that a rank answers at once.
        step: steps taken so far.
        stops: ends the evaluation if a rank must stop.

    Raises:
        StopAgreed: a rank must stop.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    prompts = min(prompts, len(generator.data.validation))
    kinds = {"greedy": replace(generator.sampling, temperature=0.0), "sampled": generator.sampling}
    totals = torch.zeros(len(kinds), 3, dtype=torch.float64, device=device)
    for first in range(0, prompts, at_once * ranks):
        mine = range(first + rank * at_once, min(first + (rank + 1) * at_once, prompts))
        questions = generator.questions(generator.data.validation, mine, numbers=mine)
        with stops.ending_early() as check:
            for row, sampling in enumerate(kinds.values()) if questions else ():
                check()
                rollout = generator.generate(
                    model,
                    questions,
                    step=step,
                    seed=generator.config.seed + DRAWN_SEED,
                    sampling=sampling,
                    generations=1,
                    between=check,
                )
                scored = rollout.rewards[~rollout.rewards.isnan()]
                totals[row] += torch.tensor(
                    [len(scored), float(scored.sum()), float((scored >= SOLVED).sum())],
                    dtype=torch.float64,
                    device=device,
                )
        stops.between()
    stops.agree()
    dist.all_reduce(totals)
    unscored = len(kinds) * prompts - int(totals[:, 0].sum())
    results: dict[str, float | str | None] = {"prompts": prompts, "unscored": unscored}
    results["reason"] = generator.last_bad_reward if unscored else None
    for kind, (scored, reward, solved) in zip(kinds, totals.tolist(), strict=True):
        results[kind] = reward / scored if scored else None
        results[f"{kind}_solved"] = solved / scored if scored else None
    return results
