"""Batches of reinforcement learning in other systems' words: MaxText, TRL, verl and NeMo-RL."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rampcli.batch.pairs import GENERATIONS_KEY, PAIRS_KEY, PROMPTS_KEY, PairBatch
from rampcli.batch.plan import GLOBAL_KEY, MICRO_KEY
from rampcli.words.translation import Translation, to_assignments

SPELLINGS: dict[str, str] = {PROMPTS_KEY: GLOBAL_KEY}
RL_COMMAND = "rampcli rl"
BARE_WORDS: dict[str, str] = {
    "batch_size": PROMPTS_KEY,
    "num_generations": GENERATIONS_KEY,
    "micro_batch_size": PAIRS_KEY,
}
"""Words of MaxText's documentation, which `rampcli rl` takes for these keys."""
IN_PRETRAINING: dict[str, str] = {
    "batch_size": f"{GLOBAL_KEY}, or {PROMPTS_KEY} under {RL_COMMAND}",
    "num_generations": f"{GENERATIONS_KEY} under {RL_COMMAND}",
    "micro_batch_size": f"{MICRO_KEY}, or {PAIRS_KEY} under {RL_COMMAND}",
}
"""What to use instead of these words outside `rampcli rl`."""
IN_OTHER_UNITS: dict[str, str] = {
    "train_micro_batch_size": "prompts of all devices",
    "ppo_micro_batch_size": "responses of all devices",
}
"""Other systems' words for micro batches that count something else than pairs per rank."""
ALL_PAIRS = "-1"
"""The micro batch without splitting, as MaxText writes it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PairSource:
    """A batch of pairs to translate.

    Attributes:
        batch: the batch of the largest stage.
        num_stages: stages of the ramp, 1 without one.
        temperature: sampling temperature.
        max_response_tokens: longest response.
    """

    batch: PairBatch
    num_stages: int
    temperature: float
    max_response_tokens: int


def expand_words(words: Sequence[str]) -> list[str]:
    """Returns the words of a command line with MaxText's bare words under our keys."""
    expanded = []
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name in BARE_WORDS:
            word = f"{BARE_WORDS[name]}={value}"
        if word == f"{PAIRS_KEY}={ALL_PAIRS}":
            word = f"{PAIRS_KEY}=null"
        expanded.append(word)
    return expanded


def translate_pairs(source: PairSource) -> dict[str, Translation]:
    """Returns a batch in each system's words, ready to paste, by system."""
    ramp = (
        [] if source.num_stages == 1 else ["the ramp of prompts; these words are its largest stage"]
    )
    translations = {name: write(source) for name, write in WRITERS.items()}
    return {
        name: Translation(words=one.words, unsaid=(*one.unsaid, *ramp))
        for name, one in translations.items()
    }


def _write_maxtext(source: PairSource) -> Translation:
    """Returns a batch in MaxText's words, which count prompts, those of all devices together.

    Its documentation calls the micro batch one of pairs, but Tunix, which it trains with,
    multiplies `train_micro_batch_size` by the generations.
    """
    batch, unsaid = source.batch, []
    pairs = batch.micro_batch_size * batch.data_parallel_size
    prompts, rest = divmod(pairs, batch.generations)
    if rest:
        prompts = 1
        unsaid.append(f"MaxText's micro batches hold whole prompts, here one for {pairs} pairs")
    if batch.updates > 1:
        unsaid.append(f"{batch.updates} updates per rollout")
    words = {
        "batch_size": batch.prompts,
        "rl.num_generations": batch.generations,
        "train_micro_batch_size": -1 if prompts == batch.prompts else prompts,
        "decode_sampling_temperature": source.temperature,
    }
    return Translation(words=to_assignments(words), unsaid=tuple(unsaid))


def _write_trl(source: PairSource) -> Translation:
    """Returns a batch as arguments of TRL's GRPOConfig, which counts completions."""
    batch = source.batch
    arguments = {
        "per_device_train_batch_size": batch.micro_batch_size,
        "gradient_accumulation_steps": batch.accumulation,
        "steps_per_generation": batch.updates * batch.accumulation,
        "num_generations": batch.generations,
        "num_iterations": 1,
        "max_completion_length": source.max_response_tokens,
        "temperature": source.temperature,
    }
    words = tuple(text for name, value in arguments.items() for text in (f"--{name}", str(value)))
    unsaid = ["TRL shuffles completions, so its micro batches are not whole groups"]
    if batch.updates > 1:
        unsaid.append(
            "TRL divides each update by the mean tokens of all updates of a rollout (dapo)"
        )
    return Translation(words=words, unsaid=tuple(unsaid))


def _write_verl(source: PairSource) -> Translation:
    """Returns a batch in verl's words: mini batches of prompts, micro batches of responses."""
    batch = source.batch
    words = {
        "data.train_batch_size": batch.prompts,
        "actor_rollout_ref.rollout.n": batch.generations,
        "actor_rollout_ref.actor.ppo_mini_batch_size": batch.prompts // batch.updates,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": batch.micro_batch_size,
        "actor_rollout_ref.rollout.temperature": source.temperature,
        "data.max_response_length": source.max_response_tokens,
    }
    return Translation(words=to_assignments(words), unsaid=())


def _write_nemo_rl(source: PairSource) -> Translation:
    """Returns a batch in NeMo-RL's words."""
    batch = source.batch
    words = {
        "grpo.num_prompts_per_step": batch.prompts,
        "grpo.num_generations_per_prompt": batch.generations,
        "policy.train_global_batch_size": batch.pairs // batch.updates,
        "policy.train_micro_batch_size": batch.micro_batch_size,
        "policy.generation.temperature": source.temperature,
        "policy.generation.max_new_tokens": source.max_response_tokens,
    }
    return Translation(words=to_assignments(words), unsaid=())


WRITERS: dict[str, Callable[[PairSource], Translation]] = {
    "MaxText": _write_maxtext,
    "TRL": _write_trl,
    "verl": _write_verl,
    "NeMo-RL": _write_nemo_rl,
}
