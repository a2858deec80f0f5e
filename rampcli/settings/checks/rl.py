"""Checks the settings of reinforcement learning against the others."""

from collections.abc import Callable, Iterator

from rampcli.batch.pairs import GENERATIONS_KEY
from rampcli.batch.position import TOKENS
from rampcli.batch.step_schedule import LENGTH_KEY, SCHEDULE_KEY, threshold_unit
from rampcli.errors import UsageError, example_of, set_to, shown
from rampcli.settings import Config
from rampcli.settings.by_key import facts_of, leaves, settings
from rampcli.settings.rewards import KEY, names_code, parse_reward_name
from rampcli.settings.rl import RESPONSE_KEY, ROLLOUT_KEY, is_rl, max_response_tokens


def check_unused(config: Config) -> Iterator[UsageError]:
    """Checks that a run uses the settings that are changed, with or without generations."""
    values = dict(leaves(config))
    if is_rl(config):
        for key, value in values.items():
            unread = facts_of(key).not_in_rl
            if unread is not None and value not in (None, unread.unused):
                note = f", and {unread.instead} instead" if unread.instead else ""
                yield UsageError(
                    f"{key}={shown(value)} does not apply to reinforcement learning{unread.why}",
                    keys=(key,),
                    remedy=set_to(key, unread.unused, note=note),
                )
        return
    changed = [
        key
        for key, value in values.items()
        if key.startswith("rl.") and value != settings()[key].default
    ]
    if changed:
        yield UsageError(
            f"{changed[0]} does not apply: {GENERATIONS_KEY} is null, so nothing is generated",
            keys=(*changed, GENERATIONS_KEY),
            remedy=["rampcli rl", set_to("rl", "grpo")],
        )


def check_prompts(config: Config) -> Iterator[UsageError]:
    """Checks that prompts are read and counted, and that a response leaves room for its prompt."""
    if not is_rl(config):
        return
    schedule = config.model.step_batch_size_schedule
    if schedule is not None and threshold_unit(schedule) == TOKENS:
        yield UsageError(
            f"{SCHEDULE_KEY}={schedule} counts tokens, and reinforcement learning counts prompts",
            keys=(SCHEDULE_KEY,),
            remedy=set_to(SCHEDULE_KEY, "samples: 0:32 10K:64"),
        )
    longest, length = max_response_tokens(config), config.data.sequence_length
    if config.data.source != "pairs":
        yield UsageError(
            f"data.source={config.data.source} has no prompts",
            keys=("data.source",),
            remedy=["data=pairs data.path=PROMPTS.jsonl", "data=pairs data.task=sort"],
        )
    elif not 0 < longest < length:
        remedies = [set_to(RESPONSE_KEY, length // 2)] if length > 1 else []
        remedies.append(set_to(LENGTH_KEY, 2 * longest) if longest else example_of(LENGTH_KEY, 128))
        yield UsageError(
            f"{RESPONSE_KEY}={longest} leaves no room for prompts in {LENGTH_KEY}={length}"
            if longest
            else f"{LENGTH_KEY}={length} leaves no room for a prompt and a response",
            keys=(RESPONSE_KEY, LENGTH_KEY),
            remedy=remedies,
        )


def check_rollout_ranks(config: Config) -> Iterator[UsageError]:
    """Checks that ranks that only generate leave ranks that train, on the same node."""
    ranks, trainer = config.rl.rollout_ranks, config.trainer
    if ranks == 0 or not is_rl(config):
        return
    if ranks >= trainer.devices:
        yield UsageError(
            f"{ROLLOUT_KEY}={ranks} leaves no process to train: trainer.devices={trainer.devices}",
            keys=(ROLLOUT_KEY, "trainer.devices"),
            remedy=[set_to(ROLLOUT_KEY, trainer.devices - 1), set_to("trainer.devices", ranks + 1)],
        )
    elif trainer.num_nodes > 1:
        yield UsageError(
            f"{ROLLOUT_KEY}={ranks} needs one node, and trainer.num_nodes={trainer.num_nodes}",
            keys=(ROLLOUT_KEY, "trainer.num_nodes"),
            remedy=[set_to(ROLLOUT_KEY, 0), set_to("trainer.num_nodes", 1)],
        )
    elif config.launch.elastic:
        yield UsageError(
            f"{ROLLOUT_KEY}={ranks} and launch.elastic=true exclude each other",
            keys=(ROLLOUT_KEY, "launch.elastic"),
            remedy=[set_to(ROLLOUT_KEY, 0), set_to("launch.elastic", False)],
        )
    elif config.rl.scale_rewards == "batch":
        yield UsageError(
            f"rl.scale_rewards=batch needs all rewards of a step before it trains, so"
            f" {ROLLOUT_KEY}={ranks} cannot overlap rollout and training",
            keys=("rl.scale_rewards", ROLLOUT_KEY),
            remedy=[set_to("rl.scale_rewards", "group", "none"), set_to(ROLLOUT_KEY, 0)],
        )


def check_reference(config: Config) -> Iterator[UsageError]:
    """Checks that there are starting weights to stay close to, if the KL divergence counts."""
    if is_rl(config) and config.rl.kl_weight > 0 and config.model.init_from is None:
        yield UsageError(
            f"rl.kl_weight={config.rl.kl_weight:g} needs the starting weights, and model.init_from"
            " is null",
            keys=("rl.kl_weight", "model.init_from"),
            remedy=[set_to("model.init_from", "RUN_DIR"), set_to("rl.kl_weight", 0)],
        )


def check_reward(config: Config, is_typed: Callable[[str], bool]) -> Iterator[UsageError]:
    """Checks the name of the reward function, without importing a user's own.

    Only a person may name code to run. A file of settings may come from a stranger.
    """
    try:
        parse_reward_name(config.rl.reward)
    except UsageError as error:
        yield error
        return
    if names_code(config.rl.reward) and not is_typed(KEY):
        yield UsageError(
            f"{KEY}={config.rl.reward} names a function of a user, which only the command line"
            " or Python may do",
            keys=(KEY,),
            remedy=f"{KEY}={config.rl.reward} on the command line, or config.{KEY} = ... in"
            " Python, if you trust it",
        )


CHECKS = (check_unused, check_prompts, check_rollout_ranks, check_reference)
