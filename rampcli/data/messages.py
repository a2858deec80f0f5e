"""Reads the forms in which files of prompts and responses are written, as messages.

A line has `prompt` and `response`, a list of `messages` (or `conversations`, as ShareGPT names
them), or `instruction`, `input` and `output`, as Alpaca names them.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from rampcli.files.records import is_unicode

ASSISTANT, USER = "assistant", "user"
LISTS = {"messages": ("role", "content"), "conversations": ("from", "value")}
"""Keys of a role and of a text in the messages of a list, by the key of the list."""
SHAREGPT_ROLES = {"human": USER, "gpt": ASSISTANT}
"""ShareGPT's names of roles."""


class Message(NamedTuple):
    """What somebody says in a conversation."""

    role: str
    content: str


def messages_of(fields: Mapping[str, Any]) -> list[Message]:
    """Returns the messages of an example. The response, if there is one, is the last of them.

    A ValueError says why an object is not an example.
    """
    for key in LISTS:
        if key in fields and fields.get("response") is None:
            return _listed(fields, key)
    asked, answered = "prompt", "response"
    if "prompt" not in fields and "instruction" in fields:
        asked, answered = "instruction", "output"
    # A prompt that is missing is the last complaint.
    answer = None if fields.get(answered) is None else _text(fields, answered)
    if asked not in fields:
        raise ValueError("there is no prompt, and no messages or instruction in its place")
    prompt = _text(fields, asked)
    if asked == "instruction" and fields.get("input"):
        prompt = f"{prompt}\n\n{_text(fields, 'input')}"
    found = [Message(USER, prompt)]
    return found if answer is None else [*found, Message(ASSISTANT, answer)]


def _listed(fields: Mapping[str, Any], key: str) -> list[Message]:
    if fields.get("tools"):
        raise ValueError("tools are not supported")
    listed = fields[key]
    if not isinstance(listed, list) or not listed:
        raise ValueError(f"{key} is not a list of messages")
    found = list[Message]()
    for number, fields_of_one in enumerate(listed, 1):
        try:
            found.append(_message(fields_of_one, *LISTS[key]))
        except ValueError as error:
            raise ValueError(f"message {number}: {error}") from error
    return found


def _message(fields: Any, role_key: str, text_key: str) -> Message:
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    others = [key for key, value in fields.items() if key not in (role_key, text_key) and value]
    if others:
        raise ValueError(f"{others[0]!r} is not supported")
    role = _text(fields, role_key)
    return Message(SHAREGPT_ROLES.get(role, role), _text(fields, text_key))


def _text(fields: Mapping[str, Any], key: str) -> str:
    text = fields.get(key)
    if not isinstance(text, str):
        raise ValueError(f"{key} is not a string" if key in fields else f"there is no {key}")
    if not is_unicode(text):
        raise ValueError(f"{key} is not valid Unicode")
    return text
