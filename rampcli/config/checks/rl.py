"""Checks the settings of reinforcement learning against the others."""

from collections.abc import Callable

from rampcli.batch.pairs import GENERATIONS_KEY, PAIRS_KEY
from rampcli.batch.plan import ACCUMULATE_KEY, MICRO_KEY
from rampcli.batch.step_schedule import SCHEDULE_KEY, counts_samples
from rampcli.batch.throughput import EFFICIENCY_KEY
from rampcli.config.layers import Precedence, sources_named, stack_of
from rampcli.config.rewards import KEY, names_code, parse_reward_name
from rampcli.config.schema import Config
from rampcli.config.settings import leaves, settings
from rampcli.errors import UsageError, set_to, set_together, shown

RESPONSE_KEY = "rl.max_response_tokens"
SEQUENCE_KEY = "data.sequence_length"
ROLLOUT_KEY = "rl.rollout_ranks"


def is_rl(config: Config) -> bool:
    """Returns whether a run is one of reinforcement learning."""
    return config.rl.generations_per_prompt is not None


def refuse_rl(config: Config, message: str, *, remedy: str) -> None:
    """Refuses a run of reinforcement learning, for commands that take pretraining only.

    Raises:
        UsageError: the run is one; the message and the remedy say what the command wants.
    """
    if is_rl(config):
        with sources_named(config):
            raise UsageError(message, keys=(GENERATIONS_KEY,), remedy=remedy)


def unit_of(config: Config) -> str:
    """Returns what the samples of a run are: prompts in reinforcement learning."""
    return "prompts" if is_rl(config) else "samples"


def max_response_tokens(config: Config) -> int:
    """Returns the length of the longest response in tokens, its end included."""
    return config.rl.max_response_tokens or config.data.sequence_length // 2


def rl_notes(config: Config) -> tuple[str, ...]:
    """Returns what a user may not expect of reinforcement learning."""
    if not is_rl(config) or config.model.init_from is not None:
        return ()
    return ("training starts from random weights: model.init_from=RUN_DIR starts from a run",)


def check_unused(config: Config) -> None:
    """Checks that no setting of reinforcement learning is changed in a run without it."""
    if is_rl(config):
        return
    changed = [
        key
        for key, value in leaves(config)
        if key.startswith("rl.") and value != settings()[key].default
    ]
    if changed:
        raise UsageError(
            f"{changed[0]} does not apply: {GENERATIONS_KEY} is null, so nothing is generated",
            keys=(*changed, GENERATIONS_KEY),
            remedy=["rampcli rl", set_to("rl", "grpo")],
        )


def check_counted_in_pairs(config: Config) -> None:
    """Checks that micro batches are counted in pairs only."""
    others = {
        MICRO_KEY: config.data.micro_batch_size,
        ACCUMULATE_KEY: config.trainer.accumulate_grad_batches,
    }
    given = [key for key, value in others.items() if value is not None]
    if given:
        raise UsageError(
            f"{given[0]}={shown(others[given[0]])} does not apply to reinforcement learning,"
            f" whose micro batches are counted in pairs: {PAIRS_KEY}",
            keys=given,
            remedy=set_together(dict.fromkeys(given), note=f", and {PAIRS_KEY} instead"),
        )


def check_counted_in_prompts(config: Config) -> None:
    """Checks that neither the length of a run nor its ramp counts tokens, whose number is open."""
    schedule = config.model.step_batch_size_schedule
    if config.trainer.max_tokens is not None:
        raise UsageError(
            f"trainer.max_tokens={config.trainer.max_tokens} does not apply to reinforcement"
            " learning, which counts prompts",
            keys=("trainer.max_tokens",),
            remedy=set_to(
                "trainer.max_tokens",
                None,
                note=", and trainer.max_steps or trainer.max_samples instead",
            ),
        )
    if schedule is not None and not counts_samples(schedule):
        raise UsageError(
            f"{SCHEDULE_KEY}={schedule} counts tokens, and reinforcement learning counts prompts",
            keys=(SCHEDULE_KEY,),
            remedy=set_to(SCHEDULE_KEY, "samples: 0:32 10K:64"),
        )


def check_throughput(config: Config) -> None:
    """Checks that no throughput of pretraining times a run of reinforcement learning."""
    if config.rampup.efficiency is not None:
        raise UsageError(
            f"{EFFICIENCY_KEY} is a throughput of pretraining and says nothing about reinforcement"
            " learning",
            keys=(EFFICIENCY_KEY,),
            remedy=set_to(EFFICIENCY_KEY, None),
        )


def check_prompts(config: Config) -> None:
    """Checks that prompts are read, and that a response leaves room for its prompt."""
    if config.data.source != "pairs":
        raise UsageError(
            f"data.source={config.data.source} has no prompts",
            keys=("data.source",),
            remedy=["data=pairs data.path=PROMPTS.jsonl", "data=pairs data.task=sort"],
        )
    longest, length = max_response_tokens(config), config.data.sequence_length
    if not 0 < longest < length:
        remedies = [set_to(RESPONSE_KEY, length // 2)] if length > 1 else []
        remedies.append(set_to(SEQUENCE_KEY, max(2, 2 * longest)))
        raise UsageError(
            f"{RESPONSE_KEY}={longest} leaves no room for prompts in {SEQUENCE_KEY}={length}"
            if longest
            else f"{SEQUENCE_KEY}={length} leaves no room for a prompt and a response",
            keys=(RESPONSE_KEY, SEQUENCE_KEY),
            remedy=remedies,
        )


def check_one_evaluation(config: Config) -> None:
    """Checks that no validation corpora are named: held-out prompts are evaluated together."""
    if config.data.validation is not None:
        raise UsageError(
            "data.validation does not apply to reinforcement learning, which evaluates one set of"
            " prompts",
            keys=("data.validation",),
            remedy=[set_to("data.validation", None), "data.validation_path instead"],
        )


def check_model_is_whole(config: Config) -> None:
    """Checks that neither layers nor sequences are split over ranks in a way that RL cannot use."""
    for key, ranks in (
        ("parallel.pipeline_parallel_size", config.parallel.pipeline_parallel_size),
        ("parallel.context_parallel_size", config.parallel.context_parallel_size),
    ):
        if ranks > 1:
            raise UsageError(
                f"{key}={ranks} does not apply to reinforcement learning, which splits a model over"
                " data-parallel and tensor-parallel ranks",
                keys=(key,),
                remedy=set_to(key, 1),
            )


def check_rollout_ranks(config: Config) -> None:
    """Checks that ranks that only generate leave ranks that train, on the same node."""
    ranks, trainer = config.rl.rollout_ranks, config.trainer
    if ranks == 0:
        return
    if ranks >= trainer.devices:
        raise UsageError(
            f"{ROLLOUT_KEY}={ranks} leaves no process to train: trainer.devices={trainer.devices}",
            keys=(ROLLOUT_KEY, "trainer.devices"),
            remedy=[set_to(ROLLOUT_KEY, trainer.devices - 1), set_to("trainer.devices", ranks + 1)],
        )
    if trainer.num_nodes > 1:
        raise UsageError(
            f"{ROLLOUT_KEY}={ranks} needs one node, and trainer.num_nodes={trainer.num_nodes}",
            keys=(ROLLOUT_KEY, "trainer.num_nodes"),
            remedy=[set_to(ROLLOUT_KEY, 0), set_to("trainer.num_nodes", 1)],
        )
    if config.launch.elastic:
        raise UsageError(
            f"{ROLLOUT_KEY}={ranks} and launch.elastic=true exclude each other",
            keys=(ROLLOUT_KEY, "launch.elastic"),
            remedy=[set_to(ROLLOUT_KEY, 0), set_to("launch.elastic", False)],
        )
    if config.rl.scale_rewards == "batch":
        raise UsageError(
            f"rl.scale_rewards=batch needs all rewards of a step before it trains, so"
            f" {ROLLOUT_KEY}={ranks} cannot overlap rollout and training",
            keys=("rl.scale_rewards", ROLLOUT_KEY),
            remedy=[set_to("rl.scale_rewards", "group", "none"), set_to(ROLLOUT_KEY, 0)],
        )


def check_reward(config: Config) -> None:
    """Checks the name of the reward function, without importing a user's own.

    Only a person may name code to run. A file of settings may come from a stranger.
    """
    parse_reward_name(config.rl.reward)
    if names_code(config.rl.reward):
        stack = stack_of(config)
        if stack.precedence(KEY) is not Precedence.USER:
            raise UsageError(
                f"{KEY}={config.rl.reward} names a function of a user, which only the command line"
                " or Python may do",
                keys=(KEY,),
                remedy=f"{KEY}={config.rl.reward} on the command line, or config.{KEY} = ... in"
                " Python, if you trust it",
            )


def check_compile(config: Config) -> None:
    """Checks that layers are not compiled: each micro batch of pairs has a length of its own."""
    if config.trainer.compile:
        raise UsageError(
            "trainer.compile=true does not apply to reinforcement learning: each micro batch has a"
            " length of its own, and would be compiled anew",
            keys=("trainer.compile",),
            remedy=set_to("trainer.compile", False),
        )


def check_reference(config: Config) -> None:
    """Checks that there are starting weights to stay close to, if the KL divergence counts."""
    if config.rl.kl_weight > 0 and config.model.init_from is None:
        raise UsageError(
            f"rl.kl_weight={config.rl.kl_weight:g} needs the starting weights, and model.init_from"
            " is null",
            keys=("rl.kl_weight", "model.init_from"),
            remedy=[set_to("model.init_from", "RUN_DIR"), set_to("rl.kl_weight", 0)],
        )


def _only_in_rl(check: Callable[[Config], None]) -> Callable[[Config], None]:
    return lambda config: check(config) if is_rl(config) else None


_CHECKS_IN_RL = (
    check_counted_in_pairs,
    check_counted_in_prompts,
    check_throughput,
    check_prompts,
    check_one_evaluation,
    check_model_is_whole,
    check_rollout_ranks,
    check_compile,
    check_reference,
)
RL_CHECKS = (check_unused, *map(_only_in_rl, _CHECKS_IN_RL))
