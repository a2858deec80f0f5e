"""Reads plain values, such as `512`, `3e-4`, `fixed` or `[256,128,50M]`, as Hydra's grammar does.

Importing Hydra's parser takes half as long as a plan, and nearly all words have plain values.
"""

import re
from typing import Any

_NUMBER = r"[-+]?(?:0|[1-9](?:_?[0-9]){0,29})(?:\.[0-9]{1,30})?(?:e[-+]?[0-9]{1,3})?"
_TEXT = r"(?!(?:inf|nan)(?![\w./-]))[a-z_/][\w./-]*|[1-9](?:_?[0-9])*[a-z]"
_ITEM = f"(?:{_NUMBER}|{_TEXT})"
_PLAIN = re.compile(
    rf"[a-z_][\w.]*=(?:{_ITEM}|\[(?:{_ITEM}(?:,{_ITEM})*)?\])", re.ASCII | re.IGNORECASE
)
_IS_NUMBER = re.compile(_NUMBER, re.IGNORECASE)
_CONSTANTS = {"null": None, "true": True, "false": False}


def is_plain(word: str) -> bool:
    """Returns whether `value_of` can read a `KEY=VALUE` word. Other words need Hydra's parser."""
    return _PLAIN.fullmatch(word) is not None


def value_of(word: str) -> Any:
    """Returns the value of a plain `KEY=VALUE` word."""
    text = word.partition("=")[2]
    if text.startswith("["):
        return [_item(item) for item in text[1:-1].split(",") if item]
    return _item(text)


def _item(text: str) -> Any:
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    if _IS_NUMBER.fullmatch(text):
        return float(text) if set(text.lower()) & {".", "e"} else int(text)
    return text
