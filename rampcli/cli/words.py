"""The words of a command line, as people type and paste them."""

from collections.abc import Iterable

from rampcli.errors import UsageError


def join_split_lists(words: Iterable[str]) -> list[str]:
    """Put lists together again that the shell split at spaces: `key=[256,`, `128,`, `50000000]` is one word.

    Raises:
        UsageError: a bracket is never closed.
    """
    joined: list[str] = []
    open_word = ""
    for word in words:
        open_word = f"{open_word} {word}" if open_word else word
        if open_word.count("[") <= open_word.count("]"):
            joined.append(open_word)
            open_word = ""
    if open_word:
        key = open_word.partition("=")[0]
        raise UsageError(f"the bracket in {open_word} is never closed", keys=(key,), remedy=f"'{open_word}]'")
    return joined
