"""The settings of reinforcement learning (`rampcli rl`)."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

from rampcli.batch.pairs import GENERATIONS_KEY
from rampcli.batch.position import TOKENS_UNIT
from rampcli.batch.step_schedule import LENGTH_KEY, SCHEDULE_KEY, threshold_unit
from rampcli.errors import UsageError, example_of, set_to, shown
from rampcli.settings.attributes import Section
from rampcli.settings.by_key import facts_of, leaves, settings
from rampcli.settings.data import DataConfig
from rampcli.settings.facts import (
    COST,
    LEARNING,
    NOTHING,
    SAMPLES,
    SPLIT,
    VALIDATION,
    any_phase,
    whole_run,
)
from rampcli.settings.fields import Keyed, keyed, setting, settings_class
from rampcli.settings.launch import LaunchConfig
from rampcli.settings.model import ModelConfig
from rampcli.settings.rewards import KEY, names_code, parse_reward_name
from rampcli.settings.trainer import TrainerConfig

if TYPE_CHECKING:
    from rampcli.settings.config import Config

_PROCESSES = "all phases divide the processes of the node in the same way"
_REWARD = "a run trusts one reward function, in all phases"


@keyed("rl.")
@settings_class(kw_only=True)
class RLConfig(Section):
    """Reinforcement learning with GRPO (arXiv 2402.03300).

    In such a run, samples are prompts: `model.global_batch_size` is the prompts per step, and ramps
    and the length of the run count prompts.
    """

    generations_per_prompt: Keyed[int | None] = setting(
        None,
        "Responses to each prompt, which are compared with each other. `null`: no reinforcement"
        " learning.",
        any_phase(SAMPLES | COST),
        unit="responses",
        at_least=2,
        at_most=100_000,
    )
    micro_batch_size: Keyed[int | None] = setting(
        None,
        "Pairs of prompt and response per data-parallel rank in one forward and backward pass."
        " `null`: all pairs of an update.",
        any_phase(SPLIT | COST),
        unit="pairs",
        at_least=1,
    )
    updates_per_rollout: Keyed[int] = setting(
        1,
        "Optimiser updates per step. Each takes its share of the prompts. Later updates train on"
        " responses that older weights generated.",
        any_phase(LEARNING | COST),
        unit="updates",
        at_least=1,
    )
    split_groups: Keyed[bool] = setting(
        False,
        "Allow micro batches of a part of a prompt's responses, if those of one prompt do not fit"
        " into memory.",
        any_phase(SPLIT | COST),
    )
    rollout_ranks: Keyed[int] = setting(
        0,
        "Processes of `trainer.devices` that only generate, while the others train on what is"
        " generated already. `0`: all processes take turns with both.",
        whole_run(COST, _PROCESSES),
        unit="processes",
        at_least=0,
    )
    temperature: Keyed[float] = setting(
        1.0,
        "Sampling temperature of the responses. Log-probabilities are those at this temperature.",
        any_phase(SAMPLES | VALIDATION | COST),
        above=0,
        at_most=10_000,
    )
    top_k: Keyed[int | None] = setting(
        None,
        "Sample from this many of the likeliest tokens. `null`: from all.",
        any_phase(SAMPLES | VALIDATION | COST),
        at_least=1,
    )
    top_p: Keyed[float | None] = setting(
        None,
        "Sample from the smallest set of likeliest tokens whose probabilities add up to this."
        " `null`: from all.",
        any_phase(SAMPLES | VALIDATION | COST),
        above=0,
        at_most=1,
    )
    max_response_tokens: Keyed[int | None] = setting(
        None,
        "Longest response, its end included. `null`: half of `data.sequence_length`.",
        any_phase(SAMPLES | VALIDATION | COST),
        unit="tokens",
        at_least=1,
    )
    reward: Keyed[str] = setting(
        "exact_match",
        "Reward of a response: `exact_match`, `contains`, `length`, or a function of your own:"
        " `module:function`, `file.py:function`, or the name of one that is registered.",
        whole_run(SAMPLES | COST, _REWARD),
    )
    reward_deadline_s: Keyed[float] = setting(
        10.0,
        "Time that a reward function of your own has per response.",
        whole_run(NOTHING, _REWARD),
        unit="seconds",
        above=0,
    )
    on_bad_reward: Keyed[Literal["leave_out", "stop"]] = setting(
        "leave_out",
        "Response to a reward that raises an error, exceeds its deadline, or is not a number from"
        " -1e18 to 1e18. `leave_out`: leave the response out of its group and count it. `stop`:"
        " end the run.",
        any_phase(LEARNING),
    )
    ratio: Keyed[Literal["token", "sequence"]] = setting(
        "token",
        "What is compared with the policy that generated: each `token`, or the whole `sequence`"
        " (GSPO, arXiv 2507.18071).",
        any_phase(LEARNING),
    )
    clip_low: Keyed[float] = setting(
        0.2, "How far a ratio may fall below 1.", any_phase(LEARNING), at_least=0, below=1
    )
    clip_high: Keyed[float] = setting(
        0.2,
        "How far a ratio may rise above 1 (DAPO, arXiv 2503.14476: 0.28).",
        any_phase(LEARNING),
        at_least=0,
    )
    scale_rewards: Keyed[Literal["none", "group", "batch"]] = setting(
        "group",
        "Divide advantages by the standard deviation of the rewards of the `group` or of the whole"
        " `batch`, or not (`none`: Dr. GRPO, arXiv 2503.20783).",
        any_phase(LEARNING),
    )
    average: Keyed[Literal["tokens", "sequences", "length"]] = setting(
        "tokens",
        "What the loss averages over: all `tokens` of an update (DAPO), its `sequences` after their"
        " tokens (GRPO), or sequences of the full `length` (Dr. GRPO).",
        any_phase(LEARNING),
    )
    kl_weight: Keyed[float] = setting(
        0.0,
        "Weight of the KL divergence from the starting weights, `model.init_from`.",
        any_phase(LEARNING | COST),
        at_least=0,
    )
    kl_correction: Keyed[bool] = setting(
        True,
        "Multiply the estimate of the KL divergence by the ratio, so that its gradient is the true"
        " one (DeepSeek-V3.2, arXiv 2512.02556). `false`: as in GRPO.",
        any_phase(LEARNING),
    )
    samples_every_steps: Keyed[int | None] = setting(
        None,
        "Interval at which some responses are written to `responses.jsonl`. `null`: never.",
        any_phase(NOTHING),
        unit="steps",
        at_least=1,
    )


def is_rl(config: "Config") -> bool:
    """Returns whether a run is one of reinforcement learning."""
    return config.rl.generations_per_prompt is not None


def unit_of(config: "Config") -> str:
    """Returns what the samples of a run are: prompts in reinforcement learning."""
    return "prompts" if is_rl(config) else "samples"


def example_of_end(config: "Config") -> str:
    """Returns a position at which a phase of such a run may end."""
    return "samples:10M" if is_rl(config) else "7.5T"


def max_response_tokens(config: "Config") -> int:
    """Returns the length of the longest response in tokens, its end included."""
    return config.rl.max_response_tokens or config.data.sequence_length // 2


def check_unused(config: "Config") -> Iterator[UsageError]:
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


def check_prompt_settings(config: "Config") -> Iterator[UsageError]:
    """Checks that prompts are read and counted, and that a response leaves room for its prompt."""
    if not is_rl(config):
        return
    schedule = config.model.step_batch_size_schedule
    if schedule is not None and threshold_unit(schedule) == TOKENS_UNIT:
        yield UsageError(
            f"{SCHEDULE_KEY}={schedule} counts tokens, and reinforcement learning counts prompts",
            keys=(SCHEDULE_KEY,),
            remedy=set_to(SCHEDULE_KEY, "samples: 0:32 10K:64"),
        )
    longest, length = max_response_tokens(config), config.data.sequence_length
    if config.data.source != "pairs":
        yield UsageError(
            f"data.source={config.data.source} has no prompts",
            keys=(DataConfig.source,),
            remedy=["data=pairs data.path=PROMPTS.jsonl", "data=pairs data.task=sort"],
        )
    elif not 0 < longest < length:
        remedies = [set_to(RLConfig.max_response_tokens, length // 2)] if length > 1 else []
        remedies.append(set_to(LENGTH_KEY, 2 * longest) if longest else example_of(LENGTH_KEY, 128))
        yield UsageError(
            f"{RLConfig.max_response_tokens}={longest} leaves no room for prompts in"
            f" {LENGTH_KEY}={length}"
            if longest
            else f"{LENGTH_KEY}={length} leaves no room for a prompt and a response",
            keys=(RLConfig.max_response_tokens, LENGTH_KEY),
            remedy=remedies,
        )


def check_rollout_ranks(config: "Config") -> Iterator[UsageError]:
    """Checks that ranks that only generate leave ranks that train, on the same node."""
    ranks, trainer = config.rl.rollout_ranks, config.trainer
    if ranks == 0 or not is_rl(config):
        return
    if ranks >= trainer.devices:
        yield UsageError(
            f"{RLConfig.rollout_ranks}={ranks} leaves no process to train:"
            f" trainer.devices={trainer.devices}",
            keys=(RLConfig.rollout_ranks, TrainerConfig.devices),
            remedy=[
                set_to(RLConfig.rollout_ranks, trainer.devices - 1),
                set_to(TrainerConfig.devices, ranks + 1),
            ],
        )
    elif trainer.num_nodes > 1:
        yield UsageError(
            f"{RLConfig.rollout_ranks}={ranks} needs one node, and"
            f" trainer.num_nodes={trainer.num_nodes}",
            keys=(RLConfig.rollout_ranks, TrainerConfig.num_nodes),
            remedy=[set_to(RLConfig.rollout_ranks, 0), set_to(TrainerConfig.num_nodes, 1)],
        )
    elif config.launch.elastic:
        yield UsageError(
            f"{RLConfig.rollout_ranks}={ranks} and launch.elastic=true exclude each other",
            keys=(RLConfig.rollout_ranks, LaunchConfig.elastic),
            remedy=[set_to(RLConfig.rollout_ranks, 0), set_to(LaunchConfig.elastic, False)],
        )
    elif config.rl.scale_rewards == "batch":
        yield UsageError(
            f"rl.scale_rewards=batch needs all rewards of a step before it trains, so"
            f" {RLConfig.rollout_ranks}={ranks} cannot overlap rollout and training",
            keys=(RLConfig.scale_rewards, RLConfig.rollout_ranks),
            remedy=[
                set_to(RLConfig.scale_rewards, "group", "none"),
                set_to(RLConfig.rollout_ranks, 0),
            ],
        )


def check_reference(config: "Config") -> Iterator[UsageError]:
    """Checks that there are starting weights to stay close to, if the KL divergence counts."""
    if is_rl(config) and config.rl.kl_weight > 0 and config.model.init_from is None:
        yield UsageError(
            f"rl.kl_weight={config.rl.kl_weight:g} needs the starting weights, and model.init_from"
            " is null",
            keys=(RLConfig.kl_weight, ModelConfig.init_from),
            remedy=[set_to(ModelConfig.init_from, "RUN_DIR"), set_to(RLConfig.kl_weight, 0)],
        )


def check_reward(config: "Config", is_typed: Callable[[str], bool]) -> Iterator[UsageError]:
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
