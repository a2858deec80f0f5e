"""The prompts of `generate.prompts`, which a run continues while it trains."""

from tokenizers import Tokenizer

from rampcli.config.checks.watch import NEW_TOKENS_KEY, PROMPTS_KEY
from rampcli.config.corpora import paths_of
from rampcli.config.schema import Config
from rampcli.data.files import open_named_tokenizer
from rampcli.data.indexed import tokenizer_of
from rampcli.data.tokenizer import byte_tokenizer, encoder_of, open_tokenizer
from rampcli.errors import UsageError, naming_setting


def check_text_prompts(config: Config) -> None:
    """Checks, before any process is started, that the prompts can be continued.

    Characters that become tokens only once the corpus is read are checked later.

    Raises:
        UsageError: the corpus has no tokenizer, or as `encode_text_prompts`.
    """
    if not config.generate.prompts:
        return
    tokenizer = _tokenizer_before_start(config)
    if tokenizer is not None:
        encode_text_prompts(config, tokenizer)


def _tokenizer_before_start(config: Config) -> Tokenizer | None:
    """Returns the tokenizer of a corpus that has not been read, or None if its text decides."""
    data = config.data
    if data.source == "indexed":
        found = [tokenizer_of(path) for path in paths_of(config) if tokenizer_of(path).is_file()]
        if not found:
            raise no_tokenizer()
        return open_tokenizer(found[0])
    if data.source == "stdlib":
        return byte_tokenizer()
    if data.tokenizer == "chars":
        return None
    return open_named_tokenizer(data.tokenizer, frozenset)[0]


def no_tokenizer() -> UsageError:
    """Returns the error for a corpus whose tokens cannot be turned into text."""
    return UsageError(
        f"{PROMPTS_KEY} needs a tokenizer, and the corpus has none",
        keys=(PROMPTS_KEY, "data.path", "data.blend"),
        remedy="a corpus of `rampcli data build`, which keeps its tokenizer",
    )


def encode_text_prompts(config: Config, tokenizer: Tokenizer) -> list[list[int]]:
    """Returns the tokens of the prompts.

    Raises:
        UsageError: the tokenizer cannot encode a prompt, or a prompt is too long or has no tokens.
    """
    length, added = config.data.sequence_length, config.generate.max_tokens
    with naming_setting(PROMPTS_KEY):
        encoded = [tokens.tolist() for tokens in encoder_of(tokenizer)(config.generate.prompts)]
    for prompt, tokens in zip(config.generate.prompts, encoded, strict=True):
        if not 1 <= len(tokens) <= length - added:
            raise UsageError(
                f"{PROMPTS_KEY}: {prompt[:100]!r} has {len(tokens)} tokens;"
                f" data.sequence_length={length} and {NEW_TOKENS_KEY}={added} leave room for 1 to"
                f" {length - added}",
                keys=(PROMPTS_KEY, "data.sequence_length", NEW_TOKENS_KEY),
                remedy=f"{NEW_TOKENS_KEY}={length - len(tokens)} or less"
                if 0 < len(tokens) < length
                else "another prompt",
            )
    return encoded
