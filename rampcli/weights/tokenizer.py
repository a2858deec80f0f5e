"""Reads the tokenizer of a checkpoint."""

from tokenizers import Tokenizer

from rampcli.checkpoint.manifest import Checkpoint
from rampcli.checkpoint.state import TOKENIZER
from rampcli.config.model_size import vocabulary_of
from rampcli.config.schema import Config
from rampcli.data.tokenizer import open_tokenizer, vocab_size_of
from rampcli.errors import DamagedFileError, UsageError


def read_tokenizer(config: Config, checkpoint: Checkpoint) -> Tokenizer | None:
    """Returns the tokenizer that a model was trained with, or None if its corpus had none.

    Raises:
        DamagedFileError: the file is not a tokenizer, or has tokens that the model does not have.
    """
    if TOKENIZER not in checkpoint.files:
        return None
    try:
        tokenizer = open_tokenizer(checkpoint.path / TOKENIZER)
    except UsageError as error:
        raise DamagedFileError(error.message) from error
    # Checked before use: encoding and writing take memory in proportion to the largest token.
    if vocab_size_of(tokenizer) > vocabulary_of(config.model):
        raise DamagedFileError(
            f"the tokenizer of {checkpoint.path} has tokens that the model does not have"
        )
    return tokenizer
