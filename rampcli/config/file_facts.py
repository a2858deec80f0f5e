"""What the files of a run decide: the size of the vocabulary, and validation samples.

They are null in recipes, so that a recipe fits any text, and numbers in every snapshot.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rampcli.config.layers import Entry, Layer, Precedence, Stack, stack_of
from rampcli.errors import UsageError, set_to, shown
from rampcli.settings.config import Config
from rampcli.settings.data import DataConfig, validation_paths
from rampcli.settings.model import MOST_VOCABULARY, ModelConfig
from rampcli.settings.rl import unit_of
from rampcli.settings.trainer import TrainerConfig

FILES = "files"
"""What has decided the entries of these settings."""
BYTES = 256
"""Tokens of a byte tokenizer, and of random tokens."""
PADDED_FROM = 1024
"""Smaller vocabularies are not padded: 127 more rows would be an eighth of them or more."""
MULTIPLE = 128
"""GPUs multiply matrices in tiles of up to 128 columns. Megatron-LM pads to the same multiple."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusFacts:
    """A corpus for training.

    Attributes:
        samples: windows that it has; prompts in reinforcement learning.
        share: its part of the samples of a run, in proportion to the other shares.
        pairs: prompts and responses in its samples, or None for other data.
    """

    name: str
    samples: int
    share: int = 1
    pairs: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FileFacts:
    """What the files of a run decide about its settings.

    Attributes:
        name: name of the corpora for messages.
        tokens: size of the tokenizer's vocabulary; None if it is unknown.
        tokenizer: hash of the tokenizer, or None if it is unknown.
        val_samples: samples that each validation can have; None if the corpora are not read.
        remedy: setting that gives samples to a validation without any, if one is known.
        weights: vocabulary of the weights that the run resumes or starts from; None for random
            weights.
        opened: whether the corpora were opened and found fit to train on.
        fingerprints: those of the training corpora, see `check_compatible`; empty if they were not
            opened.
        corpora: the training corpora, if they were opened.
    """

    name: str = ""
    tokens: int | None = None
    tokenizer: str | None = None
    val_samples: int | None = None
    remedy: str | None = None
    weights: int | None = None
    folder: Path | None = None
    opened: bool = False
    fingerprints: tuple[str, ...] = ()
    corpora: tuple[CorpusFacts, ...] = ()


ReadFiles = Callable[[Config], FileFacts]
"""Reads the files that a checked configuration names, or raises a `UsageError`."""


def without_files(config: Config) -> FileFacts:
    """Returns what is known without reading files."""
    data = config.data
    has_bytes = data.source in ("stdlib", "mock") or (
        data.source in ("text", "pairs") and data.tokenizer == "bytes"
    )
    return FileFacts(name=f"data.source={data.source}", tokens=BYTES if has_bytes else None)


def with_file_facts(
    config: Config, facts: FileFacts, *, tensor: int | None = None
) -> tuple[Stack, tuple[str, ...]]:
    """Returns the layers of a configuration with numbers for the nulls, and notes for the user.

    A size of the vocabulary that is unknown stays null.

    Args:
        tensor: number that divides the vocabulary; None for the tensor-parallel ranks. The phases
            of a run share one vocabulary, and may differ in these ranks.

    Raises:
        UsageError: the tokenizer has more tokens than the weights or any model.
    """
    entries: dict[str, Entry] = {}
    notes: list[str] = []
    place = f"files of {facts.name}"
    if config.model.vocab_size is None and (facts.tokens or facts.weights):
        ranks = tensor or config.parallel.tensor_parallel_size
        size = _vocabulary(facts, ranks)
        origin = place if facts.weights is None else f"weights in {facts.folder}"
        entries[ModelConfig.vocab_size] = Entry(size, origin, by=FILES)
        if facts.val_samples is not None:  # data that rampcli brings along needs no note
            notes.append(_vocabulary_note(facts, size))
    if config.trainer.val_samples is None:
        most = config.trainer.max_val_samples
        found = most if facts.val_samples is None else min(most, facts.val_samples)
        entries[TrainerConfig.val_samples] = Entry(found, place, by=FILES)
        if found < most:
            notes.append(_validation_note(config, facts, found))
    return stack_of(config).above(Layer(FILES, Precedence.USER, entries)), tuple(notes)


def padded(tokens: int, *, tensor: int) -> int:
    """Returns the size of the vocabulary for a tokenizer.

    Args:
        tensor: tensor-parallel ranks, which divide the vocabulary.
    """
    multiple = tensor * (MULTIPLE if tokens >= PADDED_FROM else 1)
    return -(-tokens // multiple) * multiple


def _vocabulary(facts: FileFacts, tensor: int) -> int:
    if facts.weights is not None:
        if facts.weights < (facts.tokens or 0):
            raise UsageError(
                f"the tokenizer of {facts.name} has {facts.tokens:,} tokens, more than the"
                f" {facts.weights:,} of the weights in {facts.folder}",
                keys=(ModelConfig.init_from, DataConfig.path, DataConfig.tokenizer),
                remedy=[
                    "a corpus with the tokenizer of the weights",
                    set_to(ModelConfig.init_from, None),
                ],
            )
        return facts.weights
    size = padded(facts.tokens or 0, tensor=tensor)
    if size > MOST_VOCABULARY:
        raise UsageError(
            f"the tokenizer of {facts.name} has {facts.tokens:,} tokens, and a model can have"
            f" {MOST_VOCABULARY:,}",
            keys=(ModelConfig.vocab_size,),
            remedy="another tokenizer",
        )
    return size


def _vocabulary_note(facts: FileFacts, size: int) -> str:
    if facts.tokens is None:
        return f"vocabulary: {ModelConfig.vocab_size}={size} as in {facts.folder}"
    note = f"vocabulary: {facts.tokens:,} tokens"
    if size == facts.tokens:
        return note
    if facts.weights is not None:
        return f"{note}, and {ModelConfig.vocab_size}={size} as in {facts.folder}"
    return f"{note}, padded to {ModelConfig.vocab_size}={size}"


def _validation_note(config: Config, facts: FileFacts, found: int) -> str:
    paths = [*validation_paths(config).values()]
    if paths:
        share = str(paths[0]) if len(paths) == 1 else "the smallest corpus of data.validation"
    else:
        share = f"the held-out part of {facts.name}"
    if found:
        most = config.trainer.max_val_samples
        return (
            f"validation: {found:,} of {most:,} {unit_of(config)}"
            f" ({TrainerConfig.max_val_samples}):"
            f" {share} has no more"
        )
    split = shown([f"{part:g}" for part in config.data.split])
    return f"no validation: {share} (data.split={split}) has no {unit_of(config)}" + (
        f"; {facts.remedy} gives some" if facts.remedy else ""
    )
