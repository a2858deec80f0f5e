"""Text to tokens and back.

Texts are a stranger's, so that what reads like a special token in them is ordinary text: who encodes a corpus sets `encode_special_tokens`
of the tokenizer. Prompts are a user's own, and are read as the tokenizer has it.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from rampcli.errors import RampcliError, UsageError
from rampcli.own_folder import read_file

MOST_BYTES = 512 << 20
"""Of a tokenizer.json. The largest ones have some tens of megabytes."""
END_OF_TEXT = "<|endoftext|>"
ENDS_OF_DOCUMENT = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>")
"""What tokenizers call the token between documents."""
SMALLEST_BPE = 257
"""All bytes, and the end of a document."""
CODE_POINTS = 0x110000

Encoder = Callable[[list[str]], list[NDArray[Any]]]
_STDERR = 2
_ONE_AT_A_TIME = threading.Lock()


@contextmanager
def failing_as(
    message: str, *, kind: type[RampcliError] = UsageError, remedy: str | None = None
) -> Iterator[None]:
    """Let an error of the tokenizers library be one message.

    Its Rust code can panic. A panic is not an `Exception`, and prints a report, with text of the file in it, to standard error.

    Args:
        message: what it could not do.
        kind: of the error that is raised.
        remedy: what would work.

    Raises:
        RampcliError: `message` with the library's reason.
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
    """A token is a byte of UTF-8, and its number the byte's value."""
    # Tokenizers write bytes as characters: those that can be printed as themselves, the others as characters from 256 on, as GPT-2 has it.
    printable = {
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    }
    hidden = iter(range(256, 512))
    characters = {chr(byte if byte in printable else next(hidden)): byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=characters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def character_tokenizer(alphabet: Iterable[str]) -> Tokenizer:
    """A token is a character of an alphabet, and its number the character's place in the order of code points.

    A prompt with another character is an error: a model that never saw it has no token for it, and leaving it out in silence would continue
    another text. `encoder_of` names the character; the tokenizers library speaks of a missing token "[UNK]".
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
    """Byte-level BPE as GPT-2 has it (Radford et al. 2019, section 2.2), with `END_OF_TEXT` as token 0.

    Args:
        texts: what to train on. Memory grows with its different words, not with its length.
        vocab_size: of the result, `SMALLEST_BPE` or more. A small corpus may have fewer pairs to merge.
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
    """Read a file of the tokenizers library. It neither cuts texts nor fills them up, whatever the file says.

    Raises:
        UsageError: there is none, it cannot be read, or it is no tokenizer.
    """
    remedy = "a tokenizer.json, as Hugging Face models have it"
    try:
        content = read_file(path, most_bytes=MOST_BYTES)
    except OSError as error:
        raise UsageError(
            f"cannot read the tokenizer {path}: {error.strerror or error}", remedy=remedy
        ) from error
    with failing_as(f"{path} is no tokenizer", remedy=remedy):
        tokenizer = Tokenizer.from_buffer(content)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if not tokenizer.get_vocab_size():
        raise UsageError(f"{path} is a tokenizer without tokens", remedy=remedy)
    return tokenizer


def vocab_size_of(tokenizer: Tokenizer) -> int:
    """The numbers that its tokens may have: one more than the largest, gaps included."""
    return 1 + max(tokenizer.get_vocab().values())


def usual_end_of_document(tokenizer: Tokenizer) -> str | None:
    """The one of `ENDS_OF_DOCUMENT` that it has; None where it has none or several."""
    found = [token for token in ENDS_OF_DOCUMENT if tokenizer.token_to_id(token) is not None]
    return found[0] if len(found) == 1 else None


def special_tokens_in_text(tokenizer: Tokenizer) -> list[str]:
    """Those that text can be taken for although `encode_special_tokens` is set: their names are words of the model itself."""
    read = Tokenizer.from_str(tokenizer.to_str())
    read.encode_special_tokens = True
    special = {
        number: token.content
        for number, token in read.get_added_tokens_decoder().items()
        if token.special
    }
    with failing_as("the tokenizer cannot encode its own special tokens"):
        return [
            name
            for number, name in special.items()
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
    """Texts to their tokens, without those that a post-processor would add; bytes and characters by numpy.

    The encoder raises a `UsageError` for a text that the tokenizer cannot write, as one with a character that is not in its alphabet.
    """
    vocabulary = tokenizer.get_vocab()
    if all(len(token) == 1 for token in vocabulary):
        written = tokenizer.to_str()
        if written == byte_tokenizer().to_str():
            return _bytes_of
        if written == character_tokenizer(vocabulary).to_str():
            return _character_encoder(vocabulary)
    encode_batch = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)

    def encode(texts: list[str]) -> list[NDArray[Any]]:
        with failing_as("the tokenizer cannot encode a text"):
            return [
                np.array(encoding.ids, dtype=np.int64)
                for encoding in encode_batch(texts, add_special_tokens=False)
            ]

    return encode


def _bytes_of(texts: list[str]) -> list[NDArray[Any]]:
    return [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]


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
                    remedy="text of the characters that the corpus has",
                )
        return encoded

    return encode


def code_points(text: str) -> NDArray[np.uint32]:
    """The characters of a text as numbers, [characters]."""
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
