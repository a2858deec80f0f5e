"""The settings of reinforcement learning (`rampcli rl`)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rampcli.settings.attributes import Section
from rampcli.settings.facts import COST, LEARNING, NO_RL_PHASES, NOTHING, SAMPLES, SPLIT, whole_run
from rampcli.settings.fields import setting

if TYPE_CHECKING:
    from rampcli.settings import Config

RESPONSE_KEY = "rl.max_response_tokens"
ROLLOUT_KEY = "rl.rollout_ranks"


@dataclass(kw_only=True, slots=True)
class RLConfig(Section):
    """Reinforcement learning with GRPO (arXiv 2402.03300).

    In such a run, samples are prompts: `model.global_batch_size` is the prompts per step, and ramps
    and the length of the run count prompts.
    """

    generations_per_prompt: int | None = setting(
        None,
        "Responses to each prompt, which are compared with each other. `null`: no reinforcement"
        " learning.",
        whole_run(SAMPLES | COST, NO_RL_PHASES),
        unit="responses",
        at_least=2,
        at_most=100_000,
    )
    micro_batch_size: int | None = setting(
        None,
        "Pairs of prompt and response per data-parallel rank in one forward and backward pass."
        " `null`: all pairs of an update.",
        whole_run(SPLIT | COST, NO_RL_PHASES),
        unit="pairs",
        at_least=1,
    )
    updates_per_rollout: int = setting(
        1,
        "Optimiser updates per step. Each takes its share of the prompts. Later updates train on"
        " responses that older weights generated.",
        whole_run(LEARNING | COST, NO_RL_PHASES),
        unit="updates",
        at_least=1,
    )
    split_groups: bool = setting(
        False,
        "Allow micro batches of a part of a prompt's responses, if those of one prompt do not fit"
        " into memory.",
        whole_run(SPLIT | COST, NO_RL_PHASES),
    )
    rollout_ranks: int = setting(
        0,
        "Processes of `trainer.devices` that only generate, while the others train on what is"
        " generated already. `0`: all processes take turns with both.",
        whole_run(COST, NO_RL_PHASES),
        unit="processes",
        at_least=0,
    )
    temperature: float = setting(
        1.0,
        "Sampling temperature of the responses. Log-probabilities are those at this temperature.",
        whole_run(SAMPLES | COST, NO_RL_PHASES),
        above=0,
        at_most=10_000,
    )
    top_k: int | None = setting(
        None,
        "Sample from this many of the likeliest tokens. `null`: from all.",
        whole_run(SAMPLES | COST, NO_RL_PHASES),
        at_least=1,
    )
    top_p: float | None = setting(
        None,
        "Sample from the smallest set of likeliest tokens whose probabilities add up to this."
        " `null`: from all.",
        whole_run(SAMPLES | COST, NO_RL_PHASES),
        above=0,
        at_most=1,
    )
    max_response_tokens: int | None = setting(
        None,
        "Longest response, its end included. `null`: half of `data.sequence_length`.",
        whole_run(SAMPLES | COST, NO_RL_PHASES),
        unit="tokens",
        at_least=1,
    )
    reward: str = setting(
        "exact_match",
        "Reward of a response: `exact_match`, `contains`, `length`, or a function of your own:"
        " `module:function`, `file.py:function`, or the name of one that is registered.",
        whole_run(SAMPLES | COST, NO_RL_PHASES),
    )
    reward_deadline_s: float = setting(
        10.0,
        "Time that a reward function of your own has per response.",
        whole_run(NOTHING, NO_RL_PHASES),
        unit="seconds",
        above=0,
    )
    on_bad_reward: Literal["leave_out", "stop"] = setting(
        "leave_out",
        "Response to a reward that raises an error, exceeds its deadline, or is not a number from"
        " -1e18 to 1e18. `leave_out`: leave the response out of its group and count it. `stop`:"
        " end the run.",
        whole_run(LEARNING, NO_RL_PHASES),
    )
    ratio: Literal["token", "sequence"] = setting(
        "token",
        "What is compared with the policy that generated: each `token`, or the whole `sequence`"
        " (GSPO, arXiv 2507.18071).",
        whole_run(LEARNING, NO_RL_PHASES),
    )
    clip_low: float = setting(
        0.2,
        "How far a ratio may fall below 1.",
        whole_run(LEARNING, NO_RL_PHASES),
        at_least=0,
        below=1,
    )
    clip_high: float = setting(
        0.2,
        "How far a ratio may rise above 1 (DAPO, arXiv 2503.14476: 0.28).",
        whole_run(LEARNING, NO_RL_PHASES),
        at_least=0,
    )
    scale_rewards: Literal["none", "group", "batch"] = setting(
        "group",
        "Divide advantages by the standard deviation of the rewards of the `group` or of the whole"
        " `batch`, or not (`none`: Dr. GRPO, arXiv 2503.20783).",
        whole_run(LEARNING, NO_RL_PHASES),
    )
    average: Literal["tokens", "sequences", "length"] = setting(
        "tokens",
        "What the loss averages over: all `tokens` of an update (DAPO), its `sequences` after their"
        " tokens (GRPO), or sequences of the full `length` (Dr. GRPO).",
        whole_run(LEARNING, NO_RL_PHASES),
    )
    kl_weight: float = setting(
        0.0,
        "Weight of the KL divergence from the starting weights, `model.init_from`.",
        whole_run(LEARNING | COST, NO_RL_PHASES),
        at_least=0,
    )
    kl_correction: bool = setting(
        True,
        "Multiply the estimate of the KL divergence by the ratio, so that its gradient is the true"
        " one (DeepSeek-V3.2, arXiv 2512.02556). `false`: as in GRPO.",
        whole_run(LEARNING, NO_RL_PHASES),
    )
    samples_every_steps: int | None = setting(
        None,
        "Interval at which some responses are written to `responses.jsonl`. `null`: never.",
        whole_run(NOTHING, NO_RL_PHASES),
        unit="steps",
        at_least=1,
    )


def is_rl(config: "Config") -> bool:
    """Returns whether a run is one of reinforcement learning."""
    return config.rl.generations_per_prompt is not None


def unit_of(config: "Config") -> str:
    """Returns what the samples of a run are: prompts in reinforcement learning."""
    return "prompts" if is_rl(config) else "samples"


def max_response_tokens(config: "Config") -> int:
    """Returns the length of the longest response in tokens, its end included."""
    return config.rl.max_response_tokens or config.data.sequence_length // 2
