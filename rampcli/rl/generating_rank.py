"""Runs a rank that only generates responses: it receives weights and generates for each step."""

from rampcli.checkpoint.load import DTYPES, empty_model
from rampcli.config import snapshot
from rampcli.config.layers import sources_named
from rampcli.data.loader import Batch, samples_of
from rampcli.data.prompts import open_prompts
from rampcli.models.decoder import Decoder
from rampcli.models.linear import round_factors, set_matmul_precision
from rampcli.parallel.ranks import take_device
from rampcli.planning.out_of_memory import rollout_out_of_memory
from rampcli.planning.run_plan import Resolved, run_plan
from rampcli.rl.bridge import Bridge, BridgeClosed, Roles, finish
from rampcli.rl.generator import Generator
from rampcli.rl.scorer import Scorer
from rampcli.runs.directory import COMPLETE, PREEMPTED, STAGE_BOUNDARY, RunDirectory
from rampcli.runs.manifest import consumed_samples
from rampcli.worker.assemble import naming_out_of_memory

ORDERLY = (COMPLETE, PREEMPTED, STAGE_BOUNDARY)
"""Statuses of a run whose ranks have ended in an orderly way."""


def generate_until_training_ends(run: RunDirectory, roles: Roles) -> int:
    """Generates rollouts until the ranks that train end, and returns the exit code.

    Raises:
        RampcliError: a user can correct the cause. An `OutOfMemoryError` names smaller rollouts.
        BridgeClosed: a rank that trains has failed, and tells why.
    """
    consumed = consumed_samples(run)
    resolved = run_plan(snapshot.read(run.config), consumed_samples=consumed)
    config = resolved.config
    with (
        sources_named(config),
        naming_out_of_memory(resolved, lambda: consumed, error_of=rollout_out_of_memory),
        Scorer(config.rl.reward, deadline_s=config.rl.reward_deadline_s) as scorer,
    ):
        device = take_device(config.trainer)
        set_matmul_precision(config.trainer.matmul_precision)
        bridge = Bridge(roles, start_timeout_s=config.launch.start_timeout_s)
        generator = Generator(config, open_prompts(config), scorer)
        model = empty_model(config, device, DTYPES[config.trainer.precision])
        round_factors(model.layers, config.trainer.matmul_precision, device)
        try:
            while True:
                step, consumed = bridge.take_order()
                bridge.take_weights(model.parameters())
                send_rollouts(resolved, bridge, generator, model, step, consumed)
        except BridgeClosed:
            if (run.read_state() or {}).get("status") not in ORDERLY:
                raise
    return 0


def send_rollouts(
    resolved: Resolved,
    bridge: Bridge,
    generator: Generator,
    model: Decoder,
    step: int,
    consumed_samples: int,
) -> None:
    """Generates this rank's rollouts of a step, in the order in which they are needed.

    Raises:
        BridgeClosed: a rank that trains has ended.
    """
    plan, roles = resolved.plan, bridge.roles
    batch_plan = plan.batch_on(plan.stage_at(consumed_samples), roles.trainers)
    ranks = range(batch_plan.data_parallel_size)
    batches = [
        Batch(first_sample=consumed_samples, plan=batch_plan, samples=samples)
        for samples in samples_of(ranks, consumed_samples, batch_plan)
    ]
    sent = []
    for number in range(batch_plan.accumulate_grad_batches):
        for data_rank in ranks:
            tag = number * batch_plan.data_parallel_size + data_rank
            if roles.generator_of(tag) != roles.rank:
                continue
            samples = batches[data_rank].samples_of_micro_batch(number)
            questions = generator.training_questions(samples)
            rollout = generator.generate(model, questions, step=step, seed=resolved.config.seed)
            packed = rollout.to_tensor().cpu()
            # The tensor-parallel ranks of a data-parallel rank are adjacent.
            width = resolved.config.parallel.tensor_parallel_size
            receivers = range(data_rank * width, (data_rank + 1) * width)
            sent.append((packed, bridge.send(packed, receivers, tag=tag)))
    for _, works in sent:
        finish(works)
