"""Reads the chat template beside a tokenizer, and finds out what it writes around a prompt.

A chat template is a program that a stranger wrote. It is rendered once, around placeholders and in
a limited process, instead of once for each prompt. The text around the placeholder is the
template's own, so special tokens in it are meant; special tokens in a prompt are not.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rampcli.errors import DamagedFileError, UsageError
from rampcli.limited_process import CPU_S, LimitError, ask
from rampcli.own_folder import read_file
from rampcli.records import ANY, read_json

TEMPLATE_FILE, CONFIG_FILE = "chat_template.jinja", "tokenizer_config.json"
MOST_BYTES = 16 << 20
MOST_TEMPLATE_BYTES = 1 << 20
PLAIN = "placeholder 7f3a9c41 <&> \"'{{ 1 }}"
PADDED = f" \n{PLAIN}\n "
"""Prompts that show whether a template keeps a prompt as it is, or strips it."""
_NAMED = {"name": str, "template": str}
_CONFIG = {"chat_template?": (str, [_NAMED], None), ...: ANY}


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """What a chat template writes around a prompt, up to where the assistant speaks.

    Attributes:
        before, after: texts around the prompt.
        strips: True if white space around the prompt is removed.
    """

    before: str
    after: str
    strips: bool


def read_chat_template(folder: Path) -> ChatTemplate | None:
    """Returns the chat template in the folder of a tokenizer, or None without one.

    Raises:
        UsageError: a file cannot be read, the template fails or exceeds its limits, or it changes
            prompts in other ways than stripping them.
    """
    template, path, variables = _read_files(folder)
    if template is None:
        return None
    request = {
        "template": template,
        "variables": [
            variables
            | {
                "messages": [{"role": "user", "content": prompt}],
                "add_generation_prompt": True,
                "tools": None,
                "documents": None,
            }
            for prompt in (PLAIN, PADDED)
        ],
    }
    try:
        answer = ask("rampcli.data.render_chat", request, cpu_s=CPU_S)
    except LimitError as error:
        raise _refused(path, str(error)) from error
    if "reason" in answer:
        raise _refused(path, answer["reason"])
    plain, padded = answer["texts"]
    before, *others = plain.split(PLAIN)
    if len(others) != 1 or padded not in (before + PADDED + others[0], plain):
        raise _refused(path, "it does not write the prompt exactly once and unchanged")
    return ChatTemplate(before, others[0], strips=padded == plain)


def _read_files(folder: Path) -> tuple[str | None, Path, dict[str, Any]]:
    """Returns the template, the file that holds it, and the tokens that it may name."""
    path, config = folder / CONFIG_FILE, dict[str, Any]()
    try:
        config = read_json(path, _CONFIG, most_bytes=MOST_BYTES)
    except FileNotFoundError:
        pass
    except DamagedFileError as error:
        raise _with_remedy(error.message) from error
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {one["name"]: one["template"] for one in template}
        template = named.get("default")
    try:
        template = read_file(folder / TEMPLATE_FILE, most_bytes=MOST_TEMPLATE_BYTES).decode()
        path = folder / TEMPLATE_FILE
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise _with_remedy(f"cannot read {folder / TEMPLATE_FILE}: {reason}") from error
    tokens = {
        name: token["content"] if isinstance(token, dict) else token
        for name, token in config.items()
        if name.endswith("_token") and _is_token(token)
    }
    return template, path, tokens


def _is_token(token: Any) -> bool:
    return isinstance(token, str) or (
        isinstance(token, dict) and isinstance(token.get("content"), str)
    )


def _refused(path: Path, reason: str) -> UsageError:
    return _with_remedy(f"the chat template in {path} cannot be used: {reason}")


def _with_remedy(message: str) -> UsageError:
    return UsageError(
        message, keys=("data.chat_template", "data.tokenizer"), remedy="data.chat_template=none"
    )
