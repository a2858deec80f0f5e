"""Text to tokens and back."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rampcli.config.schema import DataSource


def tokenizer_of(source: DataSource) -> Tokenizer | None:
    """The tokenizer of a source; None for random tokens, which mean nothing."""
    return byte_tokenizer() if source is DataSource.stdlib else None


def byte_tokenizer() -> Tokenizer:
    """A token is a byte of UTF-8, and its number the byte's value."""
    # Tokenizers write bytes as characters: those that can be printed as themselves, the others as characters from 256 on, as GPT-2 has it.
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    hidden = iter(range(256, 512))
    characters = {chr(byte if byte in printable else next(hidden)): byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=characters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
