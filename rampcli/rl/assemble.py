"""Builds what a rank of reinforcement learning needs, and trains or only generates."""

import hashlib
import os
from functools import partial

import torch

from rampcli.batch.pairs import GENERATIONS_KEY
from rampcli.batch.training_plan import TrainingPlan
from rampcli.checkpoint.load import DTYPES, empty_model
from rampcli.config import snapshot
from rampcli.config.layers import sources_named
from rampcli.data.loader import Batch, Loader, build_reading, samples_of
from rampcli.data.prompts import open_prompts
from rampcli.errors import UsageError
from rampcli.models.decoder import Decoder
from rampcli.models.linear import round_factors, set_matmul_precision
from rampcli.parallel.mesh import Meshes, build_meshes
from rampcli.parallel.ranks import take_device
from rampcli.planning.config_plan import pair_settings
from rampcli.planning.out_of_memory import rollout_out_of_memory
from rampcli.planning.run_plan import Resolved, ResolvedPhase, run_plan
from rampcli.rl.bridge import PATIENCE, Bridge, BridgeClosed, Roles, finish, take_role
from rampcli.rl.generator import Generator
from rampcli.rl.objective import Objective
from rampcli.rl.passes import PolicyPasses
from rampcli.rl.scorer import Scorer
from rampcli.rl.sources import FromOtherRanks, Policy, RolloutSource, TakingTurns
from rampcli.rl.trainer import PolicyTrainer
from rampcli.runs.directory import COMPLETE, PREEMPTED, STAGE_BOUNDARY, RunDirectory
from rampcli.runs.manifest import consumed_samples
from rampcli.settings.config import Config
from rampcli.settings.rewards import KEY, TRUSTED_REWARD, names_code
from rampcli.settings.rl import is_rl, max_response_tokens
from rampcli.train.observers.boundary import BoundaryCosts
from rampcli.train.observers.model_observer import ModelObserver
from rampcli.train.observers.observer import ObserverList
from rampcli.train.stopping import Stopper, StopRequest
from rampcli.worker.assemble import build_guard, build_observers, naming_out_of_memory, train
from rampcli.worker.load import build_initial_model, load_model_and_state, starting_step

ORDERLY = (COMPLETE, PREEMPTED, STAGE_BOUNDARY)
"""Statuses of a run whose ranks have ended in an orderly way."""


def train_or_generate(run: RunDirectory, stop: StopRequest, *, started: float) -> int:
    """Trains or generates, depending on this rank's role, and returns the exit code."""
    config = snapshot.read(run.config)
    if not is_rl(config):
        raise UsageError(
            f"{run.path} is not a run of reinforcement learning: {GENERATIONS_KEY} is null",
            keys=(GENERATIONS_KEY,),
            remedy=f"python -m rampcli.worker {run.path}",
        )
    check_trusted(config)
    roles = take_role(config.rl.rollout_ranks)
    if roles.generates:
        return generate_until_training_ends(run, roles)
    return train(run, stop, started=started, build=partial(build_policy_trainer, roles))


def check_trusted(config: Config) -> None:
    """Checks that this process may run the reward function of a user, which run directories name.

    Raises:
        UsageError: RAMPCLI_REWARD does not name the function. `rampcli rl` sets it; a run
            directory cannot.
    """
    reward = config.rl.reward
    if names_code(reward) and reward != os.environ.get(TRUSTED_REWARD):
        raise UsageError(
            f"config.yaml in the run directory sets {KEY}={reward}, and this process is not allowed"
            " to run that function",
            keys=(KEY,),
            remedy=f"{TRUSTED_REWARD}={reward} in the environment, if you trust it",
        )


def build_policy_trainer(
    roles: Roles,
    resolved: Resolved,
    phase: ResolvedPhase,
    run: RunDirectory,
    device: torch.device,
    stop: StopRequest,
    costs: BoundaryCosts,
) -> PolicyTrainer:
    """Returns a trainer with everything that a run needs and with the newest checkpoint loaded."""
    config, pairs = phase.config, pair_settings(phase.config)
    assert pairs is not None
    # A rank may wait for another one's whole rollout, and a reward may take long.
    meshes = build_meshes(device, config.parallel, timeout=PATIENCE)
    prompts = open_prompts(config)
    together = f"{prompts.training.fingerprint} {prompts.validation.fingerprint}"
    loaded = load_model_and_state(
        resolved,
        phase,
        run,
        meshes,
        device,
        fingerprints=(hashlib.sha256(together.encode()).hexdigest(),),
        tokenizer=prompts.format.tokenizer,
        special_tokens=prompts.format.special_tokens,
    )
    passes = PolicyPasses(
        config,
        loaded.parts,
        meshes,
        device,
        objective=Objective(config.rl, max_response_tokens(config)),
        reference=_build_reference(config, run, meshes, device),
    )
    scorer = Scorer(config.rl.reward, deadline_s=config.rl.reward_deadline_s)
    generator = Generator(config, prompts, scorer, reading=phase.reading)
    policy = Policy(passes, config)
    source: RolloutSource = TakingTurns(generator, policy, passes)
    if roles.generators:
        source = FromOtherRanks(
            generator,
            policy,
            passes,
            bridge=Bridge(roles, start_timeout_s=config.launch.start_timeout_s),
        )
    reading = build_reading(config, meshes.data_ranks)
    observers = build_observers(resolved, phase, run, passes, loaded, costs, stop)
    return PolicyTrainer(
        config=config,
        plan=resolved.plan,
        learning_rate=phase.rate,
        couplings=phase.couplings(),
        passes=passes,
        optimizers=loaded.optimizers,
        loader=Loader(None, reading=reading, device=device),
        validation_loaders={None: Loader(None, reading=reading, device=device)},
        checkpoints=loaded.checkpoints,
        guard=build_guard(config, loaded),
        observers=ObserverList(observers),
        measurers=[one for one in observers if isinstance(one, ModelObserver)],
        state=loaded.state,
        stopper=Stopper(stop, passes),
        first_validated_sample=phase.first_validated_sample,
        source=source,
        pairs=pairs,
    )


def _build_reference(
    config: Config, run: RunDirectory, meshes: Meshes, device: torch.device
) -> Decoder | None:
    """Returns a model with the starting weights, or None if the loss does not need it.

    Loads the checkpoint this run started from; the run in `model.init_from` may have newer ones.
    """
    if config.rl.kl_weight == 0:
        return None
    step = starting_step(config, run)
    (reference,) = build_initial_model(config, meshes, device, step=step)
    return reference.requires_grad_(False)


def generate_until_training_ends(run: RunDirectory, roles: Roles) -> int:
    """Generates rollouts until the ranks that train end, and returns the exit code.

    Raises:
        RampcliError: a user can correct the cause. An `OutOfMemoryError` names smaller rollouts.
        BridgeClosed: a rank that trains has failed, and tells why.
    """
    consumed = consumed_samples(run)
    resolved = run_plan(snapshot.read(run.config), consumed_samples=consumed)
    phase = resolved.at(consumed)
    config = phase.config
    with (
        sources_named(config),
        naming_out_of_memory(resolved, lambda: consumed, error_of=rollout_out_of_memory),
        Scorer(config.rl.reward, deadline_s=config.rl.reward_deadline_s) as scorer,
    ):
        device = take_device(config.trainer)
        set_matmul_precision(config.trainer.matmul_precision)
        bridge = Bridge(roles, start_timeout_s=config.launch.start_timeout_s)
        generator = Generator(config, open_prompts(config), scorer, reading=phase.reading)
        model = empty_model(config, device, DTYPES[config.trainer.precision])
        round_factors(model.layers, config.trainer.matmul_precision, device)
        try:
            while True:
                step, consumed = bridge.take_order()
                bridge.take_weights(model.parameters())
                send_rollouts(resolved.plan, bridge, generator, model, step, consumed)
        except BridgeClosed:
            if (run.read_state() or {}).get("status") not in ORDERLY:
                raise
    return 0


def send_rollouts(
    plan: TrainingPlan,
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
    roles = bridge.roles
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
            seed = generator.config.seed
            rollout = generator.generate(model, questions, step=step, seed=seed)
            packed = rollout.to_tensor().cpu()
            # The tensor-parallel ranks of a data-parallel rank are adjacent.
            width = generator.config.parallel.tensor_parallel_size
            receivers = range(data_rank * width, (data_rank + 1) * width)
            sent.append((packed, bridge.send(packed, receivers, tag=tag)))
    for _, works in sent:
        finish(works)
