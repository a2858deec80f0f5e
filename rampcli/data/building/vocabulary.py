"""Makes the tokenizer of a build: reads a file, collects characters or trains byte-pair merges."""

from tokenizers import Tokenizer

from rampcli.data import tokenizer as tokenizers
from rampcli.data.building.folder import BuildFolder
from rampcli.data.building.gathering import Gathering
from rampcli.data.building.inputs import Inputs
from rampcli.data.building.options import NO_EOD
from rampcli.data.building.workers import environment
from rampcli.errors import UsageError
from rampcli.files.guarded_folder import read_file

TRAINING_BYTES = 256 << 20
"""Approximate size of the text that merges are learnt from."""
SPECIAL_SHOWN = 6


def tokenizer_json(inputs: Inputs, folder: BuildFolder) -> str | bytes:
    """Returns the contents of `tokenizer.json` for a build; makes the tokenizer if necessary.

    Args:
        folder: keeps what has been gathered from the inputs, so that an interrupted call resumes.

    Raises:
        UsageError: a file cannot be read, or a record is bad.
    """
    options = inputs.options
    if options.tokenizer_path is not None:
        return read_file(options.tokenizer_path, most_bytes=tokenizers.MOST_BYTES)
    if options.tokenizer == "bytes":
        tokenizer = tokenizers.byte_tokenizer()
    elif options.tokenizer == "chars":
        characters = Gathering(folder, inputs).characters()
        tokenizer = (
            tokenizers.character_tokenizer(characters)
            if characters
            else tokenizers.byte_tokenizer()
        )
    else:
        with environment({"TOKENIZERS_PARALLELISM": "true" if inputs.workers > 1 else "false"}):
            tokenizer = _train(inputs, folder, vocab_size=options.train_bpe or 0)
    return tokenizer.to_str(pretty=True)


def _train(inputs: Inputs, folder: BuildFolder, *, vocab_size: int) -> Tokenizer:
    texts = Gathering(folder, inputs).sampled(TRAINING_BYTES)
    tokenizer = tokenizers.train_bpe(texts, vocab_size)
    if (found := tokenizers.vocab_size_of(tokenizer)) < vocab_size:
        inputs.watcher.on_note(
            f"the corpus is too small for --train-bpe {vocab_size}: the tokenizer has {found:,}"
            " tokens"
        )
    return tokenizer


def end_of_document(wanted: str | None, tokenizer: Tokenizer) -> int | None:
    """Returns the end-of-document token, or None if documents end without one.

    Args:
        wanted: the token's name, "none", or None for the tokenizer's own.

    Raises:
        UsageError: the tokenizer has no such token.
    """
    if wanted == NO_EOD:
        return None
    token = tokenizers.usual_end_of_document(tokenizer) if wanted is None else wanted
    if token is None:
        return None
    number = tokenizer.token_to_id(token)
    if number is None:
        special = [one.content for one in tokenizer.get_added_tokens_decoder().values()]
        raise UsageError(
            f"--eod {token} is not a token of the tokenizer",
            remedy=f"--eod with one of {', '.join([*special[:SPECIAL_SHOWN], NO_EOD])}",
        )
    return int(number)
