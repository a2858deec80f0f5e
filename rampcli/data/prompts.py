"""Prompts that a model is to answer."""

from collections.abc import Sequence
from dataclasses import dataclass

from rampcli.config.checks.rl import RESPONSE_KEY, SEQUENCE_KEY, max_response_tokens
from rampcli.config.schema import Config
from rampcli.data.examples import Example, Examples, open_examples
from rampcli.data.pair_format import PairFormat, Tokens
from rampcli.data.pairs import ENCODED_AT_ONCE, blocks_of, open_format
from rampcli.errors import UsageError


@dataclass(frozen=True, slots=True)
class Prompts:
    """Examples whose prompts a model answers.

    Attributes:
        training, validation: the examples. A response may be None.
        format: turns prompts and responses into tokens.
    """

    training: Examples
    validation: Examples
    format: PairFormat


def open_prompts(config: Config) -> Prompts:
    """Opens the prompts of a run of reinforcement learning. They need no responses.

    Raises:
        UsageError: a file cannot be read, does not fit the configuration, or has no prompts.
    """
    training, validation = open_examples(config, needs_responses=False)
    held_out = config.trainer.val_samples or 0
    wanted = {"training": (training, 1), "validation": (validation, held_out)}
    for use, (examples, least) in wanted.items():
        if least and not len(examples):
            raise UsageError(
                f"{examples.name} has no prompt for {use}",
                keys=("data.split", "trainer.val_samples"),
                remedy="more prompts, or another data.split"
                + ("" if use == "training" else ", or trainer.val_samples=0"),
            )
    return Prompts(training, validation, open_format(config, training, validation))


def check_prompts(config: Config) -> Prompts:
    """Opens the prompts, and checks that they leave room for their responses.

    All prompts of a file are checked, and the first ones of a task.

    Raises:
        UsageError: one does not, or as `open_prompts`.
    """
    prompts = open_prompts(config)
    most = config.data.sequence_length - max_response_tokens(config)
    for examples in (prompts.training, prompts.validation):
        count = min(len(examples), ENCODED_AT_ONCE if config.data.task else len(examples))
        for block in blocks_of(examples, range(count), length=most, with_responses=False):
            encoded = prompts.format.encode_prompts([prompt for _, prompt, _ in block])
            _check_lengths(examples, [index for index, *_ in block], encoded, config)
    return prompts


def read_prompts(
    examples: Examples, indices: Sequence[int], pair_format: PairFormat, config: Config
) -> list[tuple[Example, Tokens]]:
    """Returns examples by their indices, each with the tokens of its prompt.

    Raises:
        UsageError: a prompt is empty, or leaves no room for its response.
    """
    found = [examples[index] for index in indices]
    encoded = pair_format.encode_prompts([example.prompt for example in found])
    _check_lengths(examples, indices, encoded, config)
    return list(zip(found, encoded, strict=True))


def _check_lengths(
    examples: Examples, indices: Sequence[int], encoded: list[Tokens], config: Config
) -> None:
    """Refuses prompts that are empty or leave no room for their responses."""
    longest = max_response_tokens(config)
    most = config.data.sequence_length - longest
    for index, tokens in zip(indices, encoded, strict=True):
        if not 1 <= len(tokens) <= most:
            raise UsageError(
                f"{examples.place(index)}: the prompt has {len(tokens)} tokens;"
                f" {SEQUENCE_KEY}={config.data.sequence_length} and {RESPONSE_KEY}={longest} leave"
                f" room for 1 to {most}",
                keys=(SEQUENCE_KEY, RESPONSE_KEY),
                remedy=f"{SEQUENCE_KEY}={len(tokens) + longest} or more, or a smaller"
                f" {RESPONSE_KEY}"
                if len(tokens)
                else "prompts that are not empty",
            )
