"""Reads the chat template beside a tokenizer, and finds out what it writes around messages.

A chat template is a program from a stranger, so it runs in a limited process. It is rendered with
placeholders. Special tokens in the text around these are encoded as such; special tokens in a
message are encoded as ordinary text. A template may do something else with another message, so it
is also rendered with each conversation, and must write the same around its messages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from rampcli.batch.quantities import listed
from rampcli.errors import DamagedFileError, UsageError, set_to
from rampcli.files.guarded_folder import read_content
from rampcli.files.records import ANY, check_shape, read_json
from rampcli.machine.limited_process import CPU_S, LimitError, ask
from rampcli.settings.data import DataConfig

ASSISTANT, USER = "assistant", "user"
TEMPLATE_FILE, TOKENIZER_CONFIG_FILE = "chat_template.jinja", "tokenizer_config.json"
TEMPLATE_FOLDER, NAMES_FILE = "additional_chat_templates", "special_tokens_map.json"
TEMPLATE_KEYS = (DataConfig.chat_template, DataConfig.tokenizer)
NO_TEMPLATE = set_to(DataConfig.chat_template, "none")
MOST_TOKENIZER_CONFIG_BYTES = 16 << 20
MOST_TEMPLATE_BYTES = 1 << 20
PLACEHOLDER = "placeholder 7f3a9c41 <&> \"'{{{{ 1 }}}} of message {}."
"""Stands for the content of a message, by its number."""
PAD = (" \n", "\n ")
"""Around a placeholder, it shows whether a template keeps or strips white space."""
_TEMPLATES = {"chat_template?": (str, [{"name": str, "template": str}], None)}


class Message(NamedTuple):
    """What somebody says in a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ChatLayout:
    """What a chat template writes around messages of certain roles, up to the next response.

    Attributes:
        around: texts before each content, and after the last one, [messages + 1].
        strips: True for each content whose surrounding white space is removed, [messages].
    """

    around: tuple[str, ...]
    strips: tuple[bool, ...]

    def pieces(self, messages: Sequence[Message]) -> list[str]:
        """Returns what the template writes and the contents of messages, in turn."""
        contents = [
            message.content.strip() if strips else message.content
            for message, strips in zip(messages, self.strips, strict=True)
        ]
        return [*chain(*zip(self.around, contents, strict=False)), self.around[-1]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatTemplate:
    """A chat template, which can write a prompt.

    Attributes:
        source: the template.
        names: special tokens that the template may write, by their names.
        place: file that holds the template, for messages.

    Raises:
        UsageError: the template fails or exceeds its limits, or it changes prompts in other ways
            than stripping them.
    """

    source: str
    names: Mapping[str, str]
    place: str = field(compare=False)
    _layouts: dict[tuple[str, ...], ChatLayout] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        self.layout_of([Message(USER, "")])

    def layout_of(self, messages: Sequence[Message]) -> ChatLayout:
        """Returns the text that the template writes around messages with these roles.

        Their contents do not matter: the template is rendered with placeholders, once for each
        sequence of roles.

        Raises:
            UsageError: the template fails or exceeds its limits, or it does not write each
                placeholder exactly once and unchanged.
        """
        roles = tuple(message.role for message in messages)
        if roles in self._layouts:
            return self._layouts[roles]
        plain = [Message(role, PLACEHOLDER.format(number)) for number, role in enumerate(roles)]
        padded = [Message(role, content.join(PAD)) for role, content in plain]
        first, second = self._render([plain, padded])
        around, rest = list[str](), first
        for message in plain:
            before, _, rest = rest.partition(message.content)
            around.append(before)
        layout = ChatLayout(
            (*around, rest), tuple(message.content not in second for message in padded)
        )
        if any(first.count(message.content) != 1 for message in plain) or [first, second] != [
            "".join(layout.pieces(messages)) for messages in (plain, padded)
        ]:
            raise _refused(self.place, "it does not write each message exactly once and unchanged")
        self._layouts[roles] = layout
        return layout

    def check(self, conversations: Sequence[Sequence[Message]]) -> None:
        """Checks that the template writes real conversations as it writes placeholders.

        A template is a program, which may treat some contents in another way. So each conversation
        is rendered, and compared with its layout filled with its messages.

        Raises:
            ChangedPromptError: a conversation is rendered in another way.
            UsageError: as in `layout_of`.
        """
        filled = ["".join(self.layout_of(one).pieces(one)) for one in conversations]
        for number, text in enumerate(self._render(conversations)):
            if text != filled[number]:
                raise ChangedPromptError(self.place, number)

    def _render(self, conversations: Sequence[Sequence[Message]]) -> list[str]:
        """Returns the text of each conversation, up to where the assistant speaks next."""
        request = {
            "template": self.source,
            "variables": [
                {
                    **self.names,
                    "messages": [message._asdict() for message in messages],
                    "add_generation_prompt": True,
                    "tools": None,
                    "documents": None,
                }
                for messages in conversations
            ],
        }
        try:
            answer = ask("rampcli.data.render_chat", request, cpu_s=CPU_S)
        except LimitError as error:
            raise _refused(self.place, str(error)) from error
        if "reason" in answer:
            raise _refused(self.place, answer["reason"])
        return list(answer["texts"])


class ChangedPromptError(UsageError):
    """A chat template changes a prompt.

    Attributes:
        number: index of the prompt among those that were checked.
    """

    def __init__(self, place: str, number: int) -> None:
        super().__init__(
            f"the chat template in {place} changes this prompt, or writes something else around it",
            keys=TEMPLATE_KEYS,
            remedy=NO_TEMPLATE,
        )
        self.number = number


def read_chat_template(folder: Path) -> ChatTemplate | None:
    """Returns the chat template in the folder of a tokenizer, or None without one.

    Raises:
        UsageError: a file cannot be read, there are several templates and none is the default, the
            tokenizer does not encode the text of a template as transformers does, or as
            `ChatTemplate`.
    """
    config = read_tokenizer_config(folder)
    template, path = _read_template(folder, config)
    if template is None:
        return None
    _check_legacy(folder, config)
    return ChatTemplate(source=template, names=tokens_of(config), place=str(path))


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """Returns the content of the tokenizer_config.json in a folder, empty without one.

    Older tokenizers name their special tokens in special_tokens_map.json. As in transformers, it is
    read if tokenizer_config.json has no `added_tokens_decoder`, and goes before it then.

    Raises:
        UsageError: a file cannot be read.
    """
    config = read_beside_tokenizer(folder / TOKENIZER_CONFIG_FILE, {...: ANY})
    if "added_tokens_decoder" not in config:
        config |= read_beside_tokenizer(folder / NAMES_FILE, {...: ANY})
    return config


def read_beside_tokenizer(path: Path, shape: Any) -> dict[str, Any]:
    """Returns the content of a JSON file beside a tokenizer, empty without one.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return dict(read_json(path, shape, most_bytes=MOST_TOKENIZER_CONFIG_BYTES))
    except FileNotFoundError:
        return {}
    except DamagedFileError as error:
        raise UsageError(
            error.message, keys=(DataConfig.tokenizer,), remedy=f"repair or delete {path}"
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
        return read_content(path, most_bytes=MOST_TEMPLATE_BYTES).decode(), path
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise _with_remedy(f"cannot read {path}: {reason}") from error
    others = sorted(path.stem for path in (folder / TEMPLATE_FOLDER).glob("*.jinja"))
    if others:
        raise _no_default(folder / TEMPLATE_FOLDER, others)
    path = folder / TOKENIZER_CONFIG_FILE
    try:
        check_shape(config, _TEMPLATES, where=str(path))
    except DamagedFileError as error:
        raise _with_remedy(error.message) from error
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {one["name"]: one["template"] for one in template}
        if named and "default" not in named:
            raise _no_default(path, [*named])
        template = named.get("default")
    return template, path


def _no_default(path: Path, names: Sequence[str]) -> UsageError:
    return _with_remedy(
        f"{path} has the chat templates {listed([*map(repr, names)])}, and none of them is the"
        " default"
    )


def _check_legacy(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuses a tokenizer.json that encodes text after a special token as its class does not.

    A Llama tokenizer with `legacy=false` writes a space before the first word only. The normalizer
    of an old file writes one after each special token, too.
    """
    if config.get("legacy") is not False or not str(config.get("tokenizer_class")).startswith(
        "LlamaTokenizer"
    ):
        return
    path = folder / "tokenizer.json"
    normalizer = read_beside_tokenizer(path, {...: ANY}).get("normalizer")
    parts = normalizer.get("normalizers", [normalizer]) if isinstance(normalizer, dict) else []
    if any(isinstance(part, dict) and part.get("type") == "Prepend" for part in parts):
        raise _with_remedy(
            f"{folder / TOKENIZER_CONFIG_FILE} says legacy=false, but {path} writes a space after"
            " each special token, so a chat template would have other tokens than in transformers"
        )


def _refused(place: str, reason: str) -> UsageError:
    return _with_remedy(f"the chat template in {place} cannot be used: {reason}")


def _with_remedy(message: str) -> UsageError:
    return UsageError(message, keys=TEMPLATE_KEYS, remedy=NO_TEMPLATE)
