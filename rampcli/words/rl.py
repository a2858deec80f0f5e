"""Batches of reinforcement learning in other systems' words: MaxText, TRL, verl and NeMo-RL."""

from collections.abc import Sequence

from rampcli.batch.pairs import GENERATIONS_KEY, PAIRS_KEY, PROMPTS_KEY, PairBatch
from rampcli.batch.plan import GLOBAL_KEY, MICRO_KEY
from rampcli.errors import UsageError, set_to, shown
from rampcli.words.translation import Layers, System, Translation, to_assignments, to_flags

RL_COMMAND = "rampcli rl"
BARE_WORDS: dict[str, str] = {
    "batch_size": PROMPTS_KEY,
    "num_generations": GENERATIONS_KEY,
    "micro_batch_size": PAIRS_KEY,
}
"""Words of MaxText's documentation, which `rampcli rl` takes for these keys."""
ALL_PAIRS = "-1"
"""The micro batch without splitting, as MaxText writes it."""
WORDS: dict[str, dict[str, str]] = {
    # MaxText's documentation calls the micro batch one of pairs, but Tunix, which it trains with,
    # multiplies `train_micro_batch_size` by the generations.
    "MaxText": {
        "batch_size": "prompts",
        "rl.num_generations": "generations",
        "train_micro_batch_size": "prompts of all micro batches",
        "decode_sampling_temperature": "temperature",
    },
    "TRL": {
        "per_device_train_batch_size": "pairs of a micro batch",
        "gradient_accumulation_steps": "micro batches of an update",
        "steps_per_generation": "micro batches",
        "num_generations": "generations",
        "num_iterations": "trainings of a pair",
        "max_completion_length": "response tokens",
        "temperature": "temperature",
    },
    "verl": {
        "data.train_batch_size": "prompts",
        "actor_rollout_ref.rollout.n": "generations",
        "actor_rollout_ref.actor.ppo_mini_batch_size": "prompts of an update",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": "pairs of a micro batch",
        "actor_rollout_ref.rollout.temperature": "temperature",
        "data.max_response_length": "response tokens",
    },
    "NeMo-RL": {
        "grpo.num_prompts_per_step": "prompts",
        "grpo.num_generations_per_prompt": "generations",
        "policy.train_global_batch_size": "pairs of an update",
        "policy.train_micro_batch_size": "pairs of a micro batch",
        "policy.generation.temperature": "temperature",
        "policy.generation.max_new_tokens": "response tokens",
    },
}
"""What each word of a system counts."""


def expand_words(words: Sequence[str]) -> list[str]:
    """Returns the words of a command line with MaxText's bare words under our keys."""
    expanded = []
    for word in words:
        name, equals, value = word.partition("=")
        key = _key_of(name) or name
        if value == ALL_PAIRS and f".{key}".endswith(f".{PAIRS_KEY}"):
            value = "null"
        expanded.append(f"{key}={value}" if equals else word)
    return expanded


def bare_words(words: Sequence[str]) -> dict[str, str]:
    """Returns the bare words that a command line has, by the key that each stands for."""
    names = (word.partition("=")[0] for word in words)
    return {key: name for name in names if (key := _key_of(name)) is not None}


def _key_of(name: str) -> str | None:
    """Returns the key that a bare word stands for in a run or a phase; None for other names."""
    phase, dot, word = name.rpartition(".")
    is_inside = phase.startswith("phases.") and phase.count(".") == 1
    if word not in BARE_WORDS or (dot and not is_inside):
        return None
    return f"{phase}{dot}{BARE_WORDS[word]}"


def check_counts(layers: Layers) -> None:
    """Checks that pretraining does not count prompts.

    Raises:
        UsageError: it does.
    """
    batch, is_rl = layers.entry(GLOBAL_KEY), layers.entry(GENERATIONS_KEY).value is not None
    if batch.by == PROMPTS_KEY and batch.value is not None and not is_rl:
        raise UsageError(
            f"{PROMPTS_KEY}={shown(batch.value)} does not apply: {GENERATIONS_KEY} is null, so"
            " nothing is generated",
            keys=(PROMPTS_KEY,),
            remedy=[f"{set_to(GLOBAL_KEY, batch.value)} in its place", RL_COMMAND],
        )


def translate_pairs(
    batch: PairBatch, *, num_stages: int, temperature: float, max_response_tokens: int
) -> dict[str, Translation]:
    """Returns a batch in each system's words, ready to paste, by system.

    Args:
        num_stages: stages of the ramp; 1 without one.
    """
    pairs = batch.micro_batch_size * batch.data_parallel_size
    together, rest = divmod(pairs, batch.generations)
    unsaid = {"TRL": ["TRL shuffles completions, so its micro batches are not whole groups"]}
    if rest:
        together = 1
        unsaid["MaxText"] = [
            f"MaxText's micro batches hold whole prompts, here one for {pairs} pairs"
        ]
    if batch.updates > 1:
        unsaid.setdefault("MaxText", []).append(f"{batch.updates} updates per rollout")
        unsaid["TRL"].append(
            "TRL divides each update by the mean tokens of all updates of a rollout (dapo)"
        )
    values = {
        "prompts": batch.prompts,
        "prompts of an update": batch.prompts // batch.updates,
        "prompts of all micro batches": ALL_PAIRS if together == batch.prompts else together,
        "generations": batch.generations,
        "pairs of an update": batch.pairs // batch.updates,
        "pairs of a micro batch": batch.micro_batch_size,
        "micro batches": batch.updates * batch.accumulation,
        "micro batches of an update": batch.accumulation,
        "trainings of a pair": 1,
        "temperature": temperature,
        "response tokens": max_response_tokens,
    }
    ramp = [] if num_stages == 1 else ["the ramp of prompts; these words are its largest stage"]
    translations = {}
    for system, words in WORDS.items():
        write = to_flags if system == "TRL" else to_assignments
        translations[system] = Translation(
            words=write({word: values[name] for word, name in words.items()}),
            unsaid=(*unsaid.get(system, []), *ramp),
        )
    return translations


RL = System(
    spellings={PROMPTS_KEY: GLOBAL_KEY},
    checks=(check_counts,),
    refused={
        "batch_size": (
            f"is a word of `{RL_COMMAND}`",
            (GLOBAL_KEY, f"{PROMPTS_KEY} under {RL_COMMAND}"),
        ),
        "num_generations": (
            f"is a word of `{RL_COMMAND}`",
            (f"{GENERATIONS_KEY} under {RL_COMMAND}",),
        ),
        "micro_batch_size": (
            f"is a word of `{RL_COMMAND}`",
            (MICRO_KEY, f"{PAIRS_KEY} under {RL_COMMAND}"),
        ),
        "train_micro_batch_size": (
            f"counts prompts of all devices, and {PAIRS_KEY} counts pairs per rank",
            (f"{PAIRS_KEY}=VALUE",),
        ),
        "ppo_micro_batch_size": (
            f"counts responses of all devices, and {PAIRS_KEY} counts pairs per rank",
            (f"{PAIRS_KEY}=VALUE",),
        ),
    },
    remarks={PROMPTS_KEY: "The samples of such a run are prompts."},
)
