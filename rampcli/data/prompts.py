"""Prompts that a model answers, or continues while it trains (`generate.prompts`)."""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from rampcli.batch.step_schedule import LENGTH_KEY
from rampcli.data.chat_template import USER, ChatTemplate, Message, read_chat_template
from rampcli.data.encoded_pairs import ENCODED_AT_ONCE, blocks_of, check_template
from rampcli.data.examples import Example, Examples, open_examples
from rampcli.data.files import open_named_tokenizer
from rampcli.data.indexed import tokenizer_of
from rampcli.data.pair_format import PairFormat, PromptFormat, TextTokens
from rampcli.data.pairs import open_format
from rampcli.data.tokenizer import byte_tokenizer, encoder_of, open_tokenizer
from rampcli.errors import UsageError, naming_setting, set_to
from rampcli.settings.config import Config
from rampcli.settings.data import DataConfig, paths_of
from rampcli.settings.rl import RLConfig, max_response_tokens
from rampcli.settings.trainer import TrainerConfig
from rampcli.settings.watch import GenerateConfig


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
            fewer = () if use == "training" else (set_to(TrainerConfig.val_samples, 0),)
            raise UsageError(
                f"{examples.name} has no prompt for {use}",
                keys=(DataConfig.split, TrainerConfig.val_samples),
                remedy=("more prompts", "another data.split", *fewer),
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
        check_template(examples, prompts.format, range(count), length=most)
        for block in blocks_of(examples, range(count), length=most, with_responses=False):
            encoded = prompts.format.encode_prompts([one.content for _, (one,), _ in block])
            _check_lengths(examples, [index for index, *_ in block], encoded, config)
    return prompts


def read_prompts(
    examples: Examples, indices: Sequence[int], pair_format: PairFormat, config: Config
) -> list[tuple[Example, TextTokens]]:
    """Returns examples by their indices, each with the tokens of its prompt.

    Raises:
        UsageError: a prompt is empty, or leaves no room for its response.
    """
    found = [examples[index] for index in indices]
    encoded = pair_format.encode_prompts([example.prompt for example in found])
    _check_lengths(examples, indices, encoded, config)
    return list(zip(found, encoded, strict=True))


def _check_lengths(
    examples: Examples, indices: Sequence[int], encoded: list[TextTokens], config: Config
) -> None:
    reserved = max_response_tokens(config)
    for index, tokens in zip(indices, encoded, strict=True):
        if not 1 <= len(tokens) <= config.data.sequence_length - reserved:
            prompt = f"{examples.place(index)}: the prompt"
            raise _no_room(prompt, len(tokens), config, RLConfig.max_response_tokens, reserved)


def _no_room(
    prompt: str, count: int, config: Config, key: str, reserved: int, *, keys: Sequence[str] = ()
) -> UsageError:
    """Returns the error for a prompt of `count` tokens that is empty or leaves no room for others.

    Args:
        key: setting that reserves `reserved` tokens for the answer.
        keys: other settings that the error is about.
    """
    length = config.data.sequence_length
    # A response takes half of a longer sample, too, unless its length is set.
    is_half = key == RLConfig.max_response_tokens and config.rl.max_response_tokens is None
    least = 2 * count - 1 if is_half else count + reserved
    remedies = [set_to(LENGTH_KEY, least, note=" or more")]
    if count < length:
        remedies.insert(0, set_to(key, length - count, note=" or less"))
    return UsageError(
        f"{prompt} has {count} tokens; {LENGTH_KEY}={length} and {key}={reserved} leave room for"
        f" 1 to {length - reserved}",
        keys=(*keys, LENGTH_KEY, key),
        remedy=remedies if count else "prompts that are not empty",
    )


def check_text_prompts(config: Config) -> None:
    """Checks, before any process is started, that the prompts can be continued.

    With `data.tokenizer=chars`, the corpus decides which characters are tokens, so the prompts are
    checked after it is read.

    Raises:
        UsageError: the corpus has no tokenizer, or as `encode_text_prompts`.
    """
    if not config.generate.prompts:
        return
    tokenizer, template = _tokenizer_before_start(config)
    if tokenizer is not None:
        encode_text_prompts(config, tokenizer, template)


def _tokenizer_before_start(config: Config) -> tuple[Tokenizer | None, ChatTemplate | None]:
    """Returns the tokenizer and chat template of a corpus that has not been read.

    The tokenizer is None if the text of the corpus decides.
    """
    data = config.data
    if data.source == "indexed":
        found = [tokenizer_of(path) for path in paths_of(config) if tokenizer_of(path).is_file()]
        if not found:
            raise no_tokenizer()
        return open_tokenizer(found[0]), None
    if data.source == "stdlib":
        return byte_tokenizer(), None
    if data.tokenizer == "chars":
        return None, None
    tokenizer, _, folder = open_named_tokenizer(data.tokenizer, frozenset)
    takes_template = data.source == "pairs" and data.chat_template == "auto" and folder is not None
    return tokenizer, read_chat_template(folder) if takes_template and folder else None


def no_tokenizer() -> UsageError:
    """Returns the error for a corpus whose tokens cannot be turned into text."""
    return UsageError(
        f"{GenerateConfig.prompts} needs a tokenizer, and the corpus has none",
        keys=(GenerateConfig.prompts, DataConfig.path, DataConfig.blend),
        remedy="a corpus of `rampcli data build`, which keeps its tokenizer",
    )


def encode_as_trained(
    texts: list[str], config: Config, tokenizer: Tokenizer, template: ChatTemplate | None
) -> list[list[int]]:
    """Returns the tokens of prompts, as a run was trained to see them.

    A run on prompts and responses sees them in the chat template, if there is one, and as ordinary
    text. Another run sees the beginning of a document.

    Raises:
        UsageError: the tokenizer cannot encode a prompt, or the template changes it.
    """
    if config.data.source != "pairs":
        return [tokens.tolist() for tokens in encoder_of(tokenizer)(texts)]
    prompts = PromptFormat(tokenizer.to_str(), template=template)
    if template is not None:
        template.check([[Message(USER, text)] for text in texts])
    return [tokens.tolist() for tokens in prompts.encode_prompts(texts)]


def encode_text_prompts(
    config: Config, tokenizer: Tokenizer, template: ChatTemplate | None
) -> list[list[int]]:
    """Returns the tokens of `generate.prompts`.

    Raises:
        UsageError: the tokenizer cannot encode a prompt, or a prompt is too long or has no tokens.
    """
    texts, added = config.generate.prompts, config.generate.max_tokens
    with naming_setting(GenerateConfig.prompts):
        encoded = encode_as_trained(texts, config, tokenizer, template)
    for text, tokens in zip(texts, encoded, strict=True):
        if not 1 <= len(tokens) <= config.data.sequence_length - added:
            prompt = f"{GenerateConfig.prompts}: {text[:100]!r}"
            raise _no_room(
                prompt,
                len(tokens),
                config,
                GenerateConfig.max_tokens,
                added,
                keys=(GenerateConfig.prompts,),
            )
    return encoded
