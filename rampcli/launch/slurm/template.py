"""Renders job templates. Every printed value becomes quoted words of bash.

This also holds for a user's own template. Jinja's sandbox keeps such a template from reading files
and running code, but not from looping for ever. So it is rendered in a separate process, with
limits on time, memory and output: `python -m rampcli.launch.slurm.template`.
"""

import re
import shlex
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import StrictUndefined, TemplateRuntimeError, TemplateSyntaxError
from jinja2.sandbox import SandboxedEnvironment

from rampcli.errors import printable
from rampcli.machine.limited_process import CPU_S, MEMORY_GIB, WALL_S, LimitError, answer, ask

OUTPUT_MIB = 4
"""Limit for all scripts of a chain. Slurm does not accept larger scripts (max_script_size)."""
_UNUSUAL = re.compile(r"[^\w@%+=:,./ -]")


def render_template(template: str, facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Renders a template once for each mapping of names to values.

    Returns the `texts`. If the template is invalid, an expression fails, or the texts exceed
    `OUTPUT_MIB`, returns the `reason` and the `line` of the template, or None if it is unknown.
    """
    environment = SandboxedEnvironment(
        undefined=StrictUndefined,
        finalize=_quote,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["directive"] = _quote_directive
    texts, remaining = list[str](), OUTPUT_MIB * 2**20
    try:
        compiled = environment.from_string(template)
        for names in facts:
            pieces = []
            for piece in compiled.generate(names):
                remaining -= len(piece)
                if remaining < 0:
                    raise TemplateRuntimeError(f"it prints more than {OUTPUT_MIB} MiB")
                pieces.append(piece)
            texts.append("".join(pieces))
    except MemoryError as error:
        reason = f"it uses more than {MEMORY_GIB} GiB of memory"
        return {"line": _line_of(error), "reason": reason}
    except Exception as error:  # an expression in the template may raise anything
        return {"line": _line_of(error), "reason": printable(str(error))}
    return {"texts": texts}


def render_within_limits(template: str, facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Calls `render_template` in a process with limits on its time and memory."""
    request = {"template": template, "facts": facts}
    try:
        rendered: dict[str, Any] = ask(__name__, request, cpu_s=CPU_S, wall_s=WALL_S)
    except LimitError as error:
        return {"line": None, "reason": str(error)}
    return rendered


def main() -> None:
    """Renders the template on standard input within limits, and prints the result as JSON."""
    answer(lambda request: render_template(**request))


def _line_of(error: Exception) -> int | None:
    if isinstance(error, TemplateSyntaxError):
        return error.lineno
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == "<template>"
    ]
    return lines[-1] if lines else None


class _Quoted(str):
    """Text that is already quoted."""

    __slots__ = ()


def _quote(value: Any) -> str:
    """Returns a value as one quoted word of bash, or a list as several words.

    Every character that may be special to bash is written in octal. So a value in the wrong place,
    such as inside a template's own quotes or in a comment, may change but never becomes a command.
    """
    if isinstance(value, _Quoted):
        return value
    if isinstance(value, list | tuple):
        return " ".join(map(_quote, value))
    if isinstance(value, str | int | float):
        text = str(value)
        return f"$'{_UNUSUAL.sub(_octal, text)}'" if _UNUSUAL.search(text) else shlex.quote(text)
    raise TemplateRuntimeError(f"{value} cannot be printed")


def _octal(match: re.Match[str]) -> str:
    return "".join(f"\\{byte:03o}" for byte in match[0].encode(errors="surrogateescape"))


def _quote_directive(value: object) -> _Quoted:
    """Returns a value quoted for a `#SBATCH` line, so that sbatch and bash read it alike.

    sbatch interprets backslashes in both kinds of quotes.
    """
    text = str(value)
    if not text.isprintable():
        raise TemplateRuntimeError(f"{text!r} does not fit on one line")
    if re.fullmatch(r"[\w@%+=:,./*-]+", text, re.ASCII):
        return _Quoted(text)
    return _Quoted('"' + re.sub(r'([\\"$`])', r"\\\1", text) + '"')


if __name__ == "__main__":
    main()
