"""Tokenizers: trains, opens and applies them, and decodes what a model adds.

The text of a corpus comes from strangers, so whatever looks like a special token in it is ordinary
text: code that encodes a corpus sets the tokenizer's `encode_special_tokens`. Prompts come from
users, and may contain special tokens.
"""

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from rampcli.data.special_tokens import special_tokens_of
from rampcli.errors import (
    DamagedFileError,
    RampcliError,
    Remedy,
    UsageError,
    reading,
)
from rampcli.files.guarded_folder import read_content

MOST_TOKENIZER_BYTES = 512 << 20
"""Largest tokenizer.json that is read. The largest known ones have some tens of megabytes."""
MOST_GROWTH = 64
"""Most characters that a tokenizer may write for one. Known normalizers write up to 2."""
END_OF_TEXT = "<|endoftext|>"
ENDS_OF_DOCUMENT = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>")
"""Usual names of the end-of-document token."""
SMALLEST_BPE = 257
"""Vocabulary of a BPE tokenizer without merges: all bytes and the end-of-document token."""
CODE_POINTS = 0x110000

Encoder = Callable[[list[str]], list[NDArray[Any]]]
_STDERR = 2
_ONE_AT_A_TIME = threading.Lock()
CONTEXT_TOKENS = 8
"""Tokens before a text that decide how it begins: the first space of a text is often dropped."""
BYTES_OF_A_CHARACTER = 4
"""Most bytes of a character in UTF-8."""
INCOMPLETE = "\ufffd"
"""Stands for a character whose bytes are not complete yet."""


@contextmanager
def failing_as(
    message: str, *, kind: type[RampcliError] = UsageError, remedy: Remedy | None = None
) -> Iterator[None]:
    """Turns an error of the tokenizers library into one `RampcliError`.

    The library's Rust code can panic. A panic is not an `Exception`, and prints a report that
    quotes the file to standard error; this suppresses the report.

    Args:
        message: what failed; the library's reason is appended.

    Raises:
        RampcliError: of class `kind`, if the block fails.
    """
    with _ONE_AT_A_TIME, os.fdopen(os.memfd_create("stderr"), "w+b") as printed:
        stderr = os.dup(_STDERR)
        os.dup2(printed.fileno(), _STDERR)
        try:
            yield
        except BaseException as error:
            if isinstance(error, Exception) or type(error).__module__ == "pyo3_runtime":
                printed.truncate(0)
                raise kind(f"{message}: {error}", remedy=remedy) from error
            raise
        finally:
            os.dup2(stderr, _STDERR)
            os.close(stderr)
            printed.seek(0)
            os.write(_STDERR, printed.read())


def byte_tokenizer() -> Tokenizer:
    """Returns a tokenizer whose tokens are the bytes of UTF-8, numbered by their values."""
    # As in GPT-2, printable bytes are written as themselves and the others as characters from 256.
    is_printed = [chr(byte).isprintable() and byte != ord(" ") for byte in range(256)]
    hidden = iter(range(256, 512))
    characters = {chr(byte if is_printed[byte] else next(hidden)): byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=characters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def character_tokenizer(alphabet: Iterable[str]) -> Tokenizer:
    """Returns a tokenizer whose tokens are characters, numbered in the order of code points.

    Encoding any other character is an error: the model has no token for it, and dropping it
    silently would continue a different text. `encoder_of` names the character; the tokenizers
    library would complain about a missing token "[UNK]".
    """
    tokenizer = Tokenizer(
        models.WordLevel(
            {character: number for number, character in enumerate(sorted(set(alphabet)))}
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def train_bpe(texts: Iterator[str], vocab_size: int) -> Tokenizer:
    """Trains GPT-2's byte-level BPE (Radford et al. 2019, section 2.2); END_OF_TEXT is token 0.

    Args:
        texts: text to train on. Memory grows with the number of distinct words, not with length.
        vocab_size: target vocabulary, at least `SMALLEST_BPE`. A small corpus may have too few
            pairs to merge, and gives a smaller one.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def open_tokenizer(path: Path) -> Tokenizer:
    """Reads a file of the tokenizers library; truncation and padding are turned off.

    Raises:
        UsageError: the file does not exist, cannot be read, or is not a tokenizer.
    """
    remedy = "a tokenizer.json from a Hugging Face model"
    with reading(path, remedy=remedy):
        content = read_content(path, most_bytes=MOST_TOKENIZER_BYTES)
    with failing_as(f"{path} is not a tokenizer", remedy=remedy):
        tokenizer = Tokenizer.from_buffer(content)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if (growth := _growth_of(tokenizer)) > MOST_GROWTH:
        raise UsageError(
            f"{path} writes up to {growth:,.0f} characters for one character of a text; at most"
            f" {MOST_GROWTH} are allowed",
            remedy=remedy,
        )
    if not tokenizer.get_vocab_size():
        raise UsageError(f"{path} is a tokenizer without tokens", remedy=remedy)
    return tokenizer


def _growth_of(tokenizer: Tokenizer) -> float:
    """Returns how many characters a tokenizer may make of one, encoding or decoding."""
    parts = (tokenizer.normalizer, tokenizer.decoder)
    states = [json.loads(part.__getstate__()) for part in parts if part is not None]
    around = ("continuing_subword_prefix", "end_of_word_suffix")
    added = [len(getattr(tokenizer.model, name, None) or "") for name in around]
    return max(1, *added, *map(_growth_of_part, states))


def _growth_of_part(state: dict[str, Any]) -> float:
    """Returns how many characters a normalizer or a decoder may make of one."""
    parts = state.get("normalizers", state.get("decoders"))
    if parts is not None:
        return prod(map(_growth_of_part, parts))
    pattern = state.get("pattern")
    read = len(pattern.get("String", "")) if isinstance(pattern, dict) else 1
    written = len(state.get("content") or "") + len(state.get("prepend") or "")
    return max(1, written / max(1, read))


def vocab_size_of(tokenizer: Tokenizer) -> int:
    """Returns the vocabulary size, gaps included: the largest token plus one."""
    return 1 + max(tokenizer.get_vocab().values())


def usual_end_of_document(tokenizer: Tokenizer) -> str | None:
    """Returns the end-of-document token if exactly one token has a usual name, else None."""
    found = [token for token in ENDS_OF_DOCUMENT if tokenizer.token_to_id(token) is not None]
    return found[0] if len(found) == 1 else None


def bytes_of_tokens(tokenizer: Tokenizer, *, vocab_size: int) -> NDArray[np.int32] | None:
    """Returns how many bytes of text each token stands for, [vocab_size].

    Tokens that are bytes, or pieces of byte-level BPE, stand for their bytes. Tokens that are
    characters stand for the bytes of these in UTF-8. Special tokens, and tokens that the tokenizer
    does not have, stand for none. Returns None for other tokenizers: each spells its tokens in its
    own way.
    """
    decoder = json.loads(tokenizer.to_str())["decoder"] or {}
    kinds = {part["type"] for part in decoder.get("decoders", [decoder]) if "type" in part}
    is_byte_level = "ByteLevel" in kinds  # it decodes the characters of tokens as bytes
    if not is_byte_level and not has_single_characters(tokenizer):
        return None
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    added, special = tokenizer.get_added_tokens_decoder(), special_tokens_of(tokenizer)
    counts = np.zeros(vocab_size, dtype=np.int32)
    for token, number in tokenizer.get_vocab().items():
        if number < vocab_size and number not in special:
            is_bytes = is_byte_level and number not in added and alphabet.issuperset(token)
            counts[number] = len(token) if is_bytes else len(token.encode())
    return counts


def has_single_characters(tokenizer: Tokenizer) -> bool:
    """Returns True if all tokens are single characters, or single bytes."""
    return all(len(token) == 1 for token in tokenizer.get_vocab())


def special_tokens_in_text(tokenizer: Tokenizer) -> list[str]:
    """Returns special tokens that ordinary text encodes to, despite `encode_special_tokens`.

    The names of these tokens are also in the tokenizer's ordinary vocabulary.
    """
    read = Tokenizer.from_str(tokenizer.to_str())
    read.encode_special_tokens = True
    with failing_as("the tokenizer cannot encode its own special tokens"):
        return [
            name
            for number, name in special_tokens_of(read).items()
            if number in read.encode(name, add_special_tokens=False).ids
        ]


def decode(tokenizer: Tokenizer, tokens: list[int]) -> str:
    """Returns tokens as text.

    Raises:
        UsageError: the tokenizer cannot decode them.
    """
    with failing_as("the tokenizer cannot decode the tokens"):
        return str(tokenizer.decode(tokens, skip_special_tokens=False))


def encoder_of(tokenizer: Tokenizer) -> Encoder:
    """Returns a function that encodes texts, without the tokens that a post-processor adds.

    Byte and character tokenizers are encoded by numpy. The function raises a `UsageError` for text
    that the tokenizer cannot encode, such as a character outside its alphabet.
    """
    vocabulary = tokenizer.get_vocab()
    if has_single_characters(tokenizer):
        saved = tokenizer.to_str()
        if saved == byte_tokenizer().to_str():
            return lambda texts: [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]
        if saved == character_tokenizer(vocabulary).to_str():
            return _character_encoder(vocabulary)
    encode_batch = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)

    def encode(texts: list[str]) -> list[NDArray[Any]]:
        with failing_as("the tokenizer cannot encode a text"):
            return [
                np.array(encoding.ids, dtype=np.int64)
                for encoding in encode_batch(texts, add_special_tokens=False)
            ]

    return encode


def _character_encoder(vocabulary: dict[str, int]) -> Encoder:
    numbers = np.full(CODE_POINTS, -1, dtype=np.int32)
    numbers[[ord(character) for character in vocabulary]] = list(vocabulary.values())

    def encode(texts: list[str]) -> list[NDArray[Any]]:
        encoded = [numbers[code_points(text)] for text in texts]
        for text, tokens in zip(texts, encoded, strict=True):
            if len(tokens) and tokens.min() < 0:
                unknown = text[int(tokens.argmin())]
                raise UsageError(
                    f"the tokenizer has no character {unknown!r}",
                    remedy="text with the characters of the corpus only",
                )
        return encoded

    return encode


def code_points(text: str) -> NDArray[np.uint32]:
    """Returns the code points of a text, [characters]."""
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


def stream_text(
    tokens: Iterable[int], tokenizer: Tokenizer, *, after: Sequence[int]
) -> Iterator[str]:
    """Yields the text of tokens piece by piece, as soon as its characters are complete.

    Args:
        tokens: tokens of the text, without the one that ends it.
        after: tokens that the text continues. Without any, it is a text of its own.

    Raises:
        DamagedFileError: the tokenizer cannot decode.
    """
    known = _context(after, tokenizer)
    start, end = 0, len(known)  # tokens that were decoded last, as the context of the next ones

    def added() -> str:
        return _added(known[start:], end - start, tokenizer)

    for token in tokens:
        known.append(token)
        piece = added()
        if piece and not piece.endswith(INCOMPLETE):
            yield piece
            start, end = end, len(known)
    if end < len(known):
        yield added()


def continuation(tokens: Iterable[int], tokenizer: Tokenizer, *, after: Sequence[int]) -> str:
    """Returns the text of tokens. The arguments and errors are those of `stream_text`."""
    context = _context(after, tokenizer)
    return _added([*context, *tokens], len(context), tokenizer)


def _context(after: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """Returns the last tokens, from one that does not begin within a character."""
    starts = [max(0, len(after) - CONTEXT_TOKENS - more) for more in range(BYTES_OF_A_CHARACTER)]
    contexts = [[*after[start:]] for start in starts]
    whole = (one for one in contexts if not _decode(one, tokenizer).startswith(INCOMPLETE))
    return next(whole, contexts[0])


def _added(tokens: Sequence[int], number: int, tokenizer: Tokenizer) -> str:
    return _decode(tokens, tokenizer)[len(_decode(tokens[:number], tokenizer)) :]


def _decode(tokens: Sequence[int], tokenizer: Tokenizer) -> str:
    with failing_as("the tokenizer cannot decode its own tokens", kind=DamagedFileError):
        return str(tokenizer.decode(tokens))
