"""Finds what can be typed in the text of a remedy, and types it back."""

import ast
import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise

from rampcli.config.groups import group_names, option_names
from rampcli.settings.by_key import find_setting, settings
from rampcli.words import unwrapped

BEGIN = re.compile(r"""(?:^|(?<=[\s`]))(?=['"]?(?:rampcli |--[a-z]|[a-z_][\w.]*=\S))""")
WORD = re.compile(r"""(?:'[^']*'|"[^"]*"|[^\s'"`,;(]|(?<=\S)\(|,(?=[^\s'"`]))+""")
PROSE = frozenset(("for", "or", "to", "under", "which", "with", "and", "in", "of", ">"))
"""Words that end what can be typed."""
SHELL = re.compile(r"[][{}()*?$&<>|~!#\\]")
PLACEHOLDER = re.compile(r"(?<![a-zA-Z])[A-Z][A-Z_]*(?![a-z:])|\.\.\.|/mnt/")
"""Something that only the user knows, such as `FILE`."""
KEY = re.compile(
    rf"(?<![\w./-])(?:{'|'.join(sorted({key.partition('.')[0] for key in settings()}))})"
    r"(?:\.[a-z]\w*+)++(?![\w/(=])"
)
"""The key of a setting."""
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
SHORT = {"--factory": "-f", "--output": "-o"}
"""Short names of options."""


def runs(remedy: str) -> Iterator[str]:
    """Yields each run of words that can be typed: a command, or options and settings."""
    end = 0
    for begin in BEGIN.finditer(remedy):
        if begin.end() < end:
            continue
        end = begin.end()
        while (word := WORD.match(remedy, end)) and word[0] not in PROSE:
            end = word.end() + remedy.startswith(" ", word.end())
            if end == word.end():
                break
        yield remedy[begin.end() : end].strip()


def written_in(source: str) -> Iterator[str]:
    """Yields each text of a remedy that a module writes, with `X` for what it fills in."""
    for node in ast.walk(ast.parse(source)):
        is_argument = isinstance(node, ast.keyword) and node.arg == "remedy"
        if is_argument or (
            isinstance(node, ast.Assign) and "REMEDY" in ast.unparse(node.targets[0])
        ):
            yield from _texts(node.value)


def _texts(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
        yield "".join(map(str, parts))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from _texts(child)


def is_safe_in_a_shell(run: str) -> bool:
    """Returns whether a shell passes the words on as they are."""
    return SHELL.search(re.sub(r"'[^']*'|\"[^\"]*\"|\(.*", "", run)) is None


def replaces(typed: str, word: str) -> bool:
    """Returns whether what is typed takes the place of a word of a command line.

    A key or an option of a group that does not exist gives way to what is typed for it.
    """
    key = typed.partition("=")[0]
    if word.startswith("-") or "=" not in word.lstrip("~"):
        return word.lstrip("~") in (key, SHORT.get(key)) or word.lstrip("-").startswith(
            f"{key.lstrip('-')}="
        )
    old, _, option = unwrapped(word).lstrip("+~").partition("=")
    if old in group_names() and key.startswith(f"{old}."):
        return option not in option_names(old)
    return key == old or not (old in group_names() or find_setting(old))


def mended(words: Sequence[str], run: str) -> list[str]:
    """Returns a command line after a user has typed a run of words into it."""
    typed = shlex.split(run)
    if typed[0] == "rampcli":
        takes_rest = len(typed) == 2 and typed[1] in ("plan", "pretrain", "rl")
        return [typed[1], *words[1:]] if takes_rest else typed[1:]
    if "without" in typed:
        words = without(words, typed[-1], has_value=typed[-1] == "--what-if")
        typed = [word for word in typed[:-2] if word not in words]
    for word, after in pairwise([*typed, "--"]):
        if word.startswith("--") or "=" in word:
            words = without(words, word, has_value=not (after.startswith("--") or "=" in word))
    return [*words, *typed]


def without(words: Sequence[str], typed: str, *, has_value: bool) -> list[str]:
    """Returns a command line without what a typed word replaces."""
    kept, rest = [], iter(words)
    for word in rest:
        if not replaces(typed, word):
            kept.append(word)
        elif has_value and "=" not in word:
            next(rest, None)
    return kept
