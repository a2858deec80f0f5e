"""Reads the chat template beside a tokenizer, and finds out what it writes around a prompt.

A chat template is a program from a stranger, so it runs in a limited process. It is rendered once
with a placeholder, instead of once for each prompt. Special tokens in the text around the
placeholder are encoded as such; special tokens in a prompt are encoded as ordinary text.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rampcli.errors import DamagedFileError, UsageError, set_to
from rampcli.guarded_folder import read_file
from rampcli.limited_process import CPU_S, LimitError, ask
from rampcli.records import ANY, check_shape, read_json

TEMPLATE_FILE, CONFIG_FILE = "chat_template.jinja", "tokenizer_config.json"
MOST_BYTES = 16 << 20
MOST_TEMPLATE_BYTES = 1 << 20
PLAIN = "placeholder 7f3a9c41 <&> \"'{{ 1 }}"
PADDED = f" \n{PLAIN}\n "
"""Prompts that show whether a template keeps a prompt as it is, or strips it."""
_TEMPLATES = {"chat_template?": (str, [{"name": str, "template": str}], None)}


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
    source: str


def read_chat_template(folder: Path) -> ChatTemplate | None:
    """Returns the chat template in the folder of a tokenizer, or None without one.

    Raises:
        UsageError: a file cannot be read, the template fails or exceeds its limits, or it changes
            prompts in other ways than stripping them.
    """
    config = read_tokenizer_config(folder)
    template, path = _read_template(folder, config)
    if template is None:
        return None
    request = {
        "template": template,
        "variables": [
            tokens_of(config)
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
    return ChatTemplate(before, others[0], strips=padded == plain, source=template)


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """Returns the content of the tokenizer_config.json in a folder, empty without one.

    Raises:
        UsageError: it cannot be read.
    """
    return read_beside_tokenizer(folder / CONFIG_FILE, {...: ANY})


def read_beside_tokenizer(path: Path, shape: Any) -> dict[str, Any]:
    """Returns the content of a JSON file beside a tokenizer, empty without one.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return dict(read_json(path, shape, most_bytes=MOST_BYTES))
    except FileNotFoundError:
        return {}
    except DamagedFileError as error:
        raise UsageError(
            error.message, keys=("data.tokenizer",), remedy=f"repair or delete {path}"
        ) from error


def tokens_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns the special tokens of a tokenizer_config.json by their names, such as `bos_token`."""
    texts = {
        name: token.get("content") if isinstance(token, dict) else token
        for name, token in config.items()
        if name.endswith("_token")
    }
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _read_template(folder: Path, config: Mapping[str, Any]) -> tuple[str | None, Path]:
    """Returns the chat template, or None without one, and the file that holds it."""
    path = folder / TEMPLATE_FILE
    try:
        return read_file(path, most_bytes=MOST_TEMPLATE_BYTES).decode(), path
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise _with_remedy(f"cannot read {path}: {reason}") from error
    path = folder / CONFIG_FILE
    try:
        check_shape(config, _TEMPLATES, where=str(path))
    except DamagedFileError as error:
        raise _with_remedy(error.message) from error
    template = config.get("chat_template")
    if isinstance(template, list):
        template = {one["name"]: one["template"] for one in template}.get("default")
    return template, path


def _refused(path: Path, reason: str) -> UsageError:
    return _with_remedy(f"the chat template in {path} cannot be used: {reason}")


def _with_remedy(message: str) -> UsageError:
    return UsageError(
        message,
        keys=("data.chat_template", "data.tokenizer"),
        remedy=set_to("data.chat_template", "none"),
    )
