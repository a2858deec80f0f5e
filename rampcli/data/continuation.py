"""Tokens that a model adds to a prompt, as text."""

from collections.abc import Iterable, Iterator, Sequence

from tokenizers import Tokenizer

from rampcli.data.tokenizer import failing_as
from rampcli.errors import DamagedFileError

CONTEXT = 8
"""Tokens before a text that decide how it begins: the first space of a text is often dropped."""
BYTES_OF_A_CHARACTER = 4
"""Most bytes of a character in UTF-8."""
INCOMPLETE = "\ufffd"
"""Stands for a character whose bytes are not complete yet."""


def pieces_of(
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
    """Returns the text of tokens. The arguments and errors are those of `pieces_of`."""
    context = _context(after, tokenizer)
    return _added([*context, *tokens], len(context), tokenizer)


def _context(after: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """Returns the last tokens, from one that does not begin within a character."""
    starts = [max(0, len(after) - CONTEXT - more) for more in range(BYTES_OF_A_CHARACTER)]
    contexts = [[*after[start:]] for start in starts]
    whole = (one for one in contexts if not _decode(one, tokenizer).startswith(INCOMPLETE))
    return next(whole, contexts[0])


def _added(tokens: Sequence[int], number: int, tokenizer: Tokenizer) -> str:
    """Returns the text that tokens add to the text of the first `number` of them."""
    return _decode(tokens, tokenizer)[len(_decode(tokens[:number], tokenizer)) :]


def _decode(tokens: Sequence[int], tokenizer: Tokenizer) -> str:
    with failing_as("the tokenizer cannot decode its own tokens", kind=DamagedFileError):
        return str(tokenizer.decode(tokens))
