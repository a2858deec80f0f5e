"""Reads the tokenizer of a checkpoint."""

from tokenizers import Tokenizer

from rampcli.checkpoint.load_weights import tokenizer_of
from rampcli.checkpoint.manifest import Checkpoint
from rampcli.config.schema import Config
from rampcli.data.tokenizer import vocab_size_of
from rampcli.errors import DamagedFileError


def read_tokenizer(config: Config, checkpoint: Checkpoint) -> Tokenizer | None:
    """Returns the tokenizer that a model was trained with, or None if its corpus had none.

    Raises:
        DamagedFileError: the file is not a tokenizer, or has tokens that the model does not have.
    """
    tokenizer = tokenizer_of(checkpoint)
    # Checked before use: encoding and writing take memory in proportion to the largest token.
    if tokenizer is not None and vocab_size_of(tokenizer) > config.model.vocab_size:
        raise DamagedFileError(
            f"the tokenizer of {checkpoint.path} has tokens that the model does not have"
        )
    return tokenizer
