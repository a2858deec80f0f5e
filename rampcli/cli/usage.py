"""Reports errors of Typer in the style of all other errors."""

import difflib
import re
from collections.abc import Iterator
from typing import Any

import typer

from rampcli.errors import UsageError

COMMANDS_ELSEWHERE = {
    **dict.fromkeys(("finetune", "sft"), "rampcli pretrain --factory fine_tune"),
    **dict.fromkeys(("train", "run", "launch", "resume"), "rampcli pretrain --factory NAME"),
    **dict.fromkeys(("grpo", "ppo", "train_rl"), "rampcli rl --factory NAME"),
    **dict.fromkeys(("convert", "convert_to_hf"), "rampcli export RUN_DIR FOLDER"),
    **dict.fromkeys(("stop", "kill"), "rampcli cancel RUN_DIR"),
    **dict.fromkeys(("list", "ls", "show"), "rampcli status"),
    **dict.fromkeys(("log", "logs", "evaluate", "eval"), "rampcli report RUN_DIR"),
    "config": "rampcli pretrain --factory NAME --cfg",
    "version": "rampcli --version",
    "help": "rampcli --help",
}
"""Our commands for those of other systems."""
OPTIONS_ELSEWHERE = {
    **dict.fromkeys(("--yaml", "--config"), "--factory FILE.yaml"),
    "--to-yaml": "--cfg > FILE.yaml",
}
"""Our words for options of other systems, such as NeMo's files of settings."""
TyperError: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)
"""Base of Typer's errors, which old releases of Typer take from click."""


def _as_setting(error: Any) -> list[str]:
    """Returns how to set what an unknown option names, if the command takes settings."""
    if not any(str(param.metavar).startswith("KEY=") for param in error.ctx.command.params):
        return []
    from rampcli.settings.by_key import find_setting
    from rampcli.settings.unknown_keys import nearest_keys
    from rampcli.words import refusal_of

    name = error.option_name.lstrip("-").replace("-", "_")
    if meant := refusal_of(name):
        return list(meant[1])
    return [f"{key}=VALUE" for key in ([name] if find_setting(name) else nearest_keys(name)[:2])]


def _commands(group: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yields every command below a group as it is typed, `rampcli data build`, and its name."""
    for name, command in group.commands.items():
        yield f"{path} {name}", name
        if hasattr(command, "commands"):
            yield from _commands(command, f"{path} {name}")


def as_usage_error(error: Any) -> UsageError:
    """Returns an error of Typer as one of ours."""
    message = error.format_message().rstrip(".")
    if message.split(" ")[0].istitle():
        message = message[0].lower() + message[1:]
    command = error.ctx.command_path if error.ctx is not None else "rampcli"
    help_word = f"{command} --help"
    if message.startswith("no such command"):
        name = message.split("'")[1]
        if name in COMMANDS_ELSEWHERE:
            return UsageError(f"there is no command {name}", remedy=COMMANDS_ELSEWHERE[name])
        root = error.ctx.find_root()
        words = dict(_commands(root.command, root.info_name))
        near = [line for line, one in words.items() if one == name] or [
            f"{command} {one}"
            for one in difflib.get_close_matches(name, error.ctx.command.commands, n=2, cutoff=0.5)
        ]
        return UsageError(f"there is no command {name}", remedy=[*near, help_word])
    if message.startswith("no such option"):
        known = [name for param in error.ctx.command.params for name in param.opts]
        near = difflib.get_close_matches(error.option_name, known, n=2, cutoff=0.6)
        if error.option_name in OPTIONS_ELSEWHERE:
            near = [OPTIONS_ELSEWHERE[error.option_name]]
        return UsageError(
            f"{command} has no option {error.option_name}",
            remedy=[*(_as_setting(error) or near), help_word],
        )
    message = re.sub(r"('--[\w-]+') / '-\w+'", r"\1", message)
    message = message.replace(": Value error, ", ": ").replace(": Input should", ": it should")
    return UsageError(message, remedy=help_word)
