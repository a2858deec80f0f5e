"""Runs a rank that only generates: it receives weights and generates the responses of each step."""

import torch

from rampcli.batch.plan import BatchPlan
from rampcli.config import snapshot
from rampcli.config.layers import sources_named
from rampcli.data.loader import samples_of
from rampcli.data.prompts import open_prompts
from rampcli.models.decoder import Decoder
from rampcli.parallel.ranks import device_here
from rampcli.planning.out_of_memory import rollout_out_of_memory
from rampcli.planning.run_plan import Resolved, run_plan
from rampcli.rl.bridge import Bridge, BridgeClosed, Order, finish
from rampcli.rl.generator import Generator
from rampcli.rl.policy import DTYPES
from rampcli.rl.roles import Roles
from rampcli.rl.scorer import Scorer
from rampcli.rl.sources import Share
from rampcli.runs.directory import COMPLETE, PREEMPTED, STAGE_BOUNDARY, RunDirectory
from rampcli.runs.manifest import consumed_samples
from rampcli.train.whole_model import empty_model
from rampcli.worker.assemble import naming_out_of_memory

ORDERLY = (COMPLETE, PREEMPTED, STAGE_BOUNDARY)
"""Status of a run whose ranks have ended as they should."""


def serve(run: RunDirectory, roles: Roles) -> int:
    """Generates until the ranks that train end, and returns the exit code.

    Raises:
        RampcliError: a user can correct the cause. An `OutOfMemoryError` names smaller rollouts.
        BridgeClosed: a rank that trains has failed, and tells why.
    """
    order = Order(0, consumed_samples(run))
    resolved = run_plan(snapshot.read(run.config), consumed_samples=order.consumed_samples)
    config = resolved.config
    with (
        sources_named(config),
        naming_out_of_memory(
            resolved,
            lambda: order.consumed_samples,
            rank=roles.rank,
            error_of=rollout_out_of_memory,
        ),
        Scorer(config.rl.reward, deadline_s=config.rl.reward_deadline_s) as scorer,
    ):
        device = device_here(config.trainer.accelerator)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        bridge = Bridge(roles)
        generator = Generator(config, open_prompts(config), scorer)
        model = empty_model(config, device, DTYPES[config.trainer.precision])
        try:
            while True:
                order = bridge.take_order()
                bridge.take_weights(model.parameters())
                answer(resolved, order, bridge, generator, model)
        except BridgeClosed:
            if (run.read_state() or {}).get("status") not in ORDERLY:
                raise
    return 0


def answer(
    resolved: Resolved, order: Order, bridge: Bridge, generator: Generator, model: Decoder
) -> None:
    """Generates this rank's rollouts of a step, in the order in which they are needed.

    Raises:
        BridgeClosed: a rank that trains has ended.
    """
    plan, roles = resolved.plan, bridge.roles
    batch = plan.batch_on(plan.stage_at(order.consumed_samples), roles.trainers)
    sent = []
    for number in range(batch.accumulate_grad_batches):
        for data_rank in range(batch.data_parallel_size):
            tag = number * batch.data_parallel_size + data_rank
            if roles.generator_of(tag) != roles.rank:
                continue
            questions = generator.training_questions(
                _share(order, batch, data_rank).micro_batch(number)
            )
            rollout = generator.generate(
                model, questions, step=order.step, seed=resolved.config.seed
            )
            packed = rollout.to_tensor().cpu()
            # The tensor-parallel ranks of a data-parallel rank are adjacent.
            width = resolved.config.parallel.tensor_parallel_size
            ranks = range(data_rank * width, (data_rank + 1) * width)
            sent.append((packed, bridge.send(packed, ranks, tag=tag)))
    for _, works in sent:
        finish(works)


def _share(order: Order, batch: BatchPlan, data_rank: int) -> Share:
    samples = samples_of([data_rank], order.consumed_samples, batch).ravel()
    return Share(
        step=order.step, consumed_samples=order.consumed_samples, plan=batch, samples=samples
    )
