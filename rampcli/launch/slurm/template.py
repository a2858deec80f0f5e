"""Renders job templates. Whatever a template prints comes out as quoted words of bash, also from a template of a user's own.

The sandbox of Jinja keeps a template from reading files and running code, not from looping for ever. So a template of a user's own is
rendered by `python -m rampcli.launch.slurm.template`, a process with limits of time, memory and output.
"""

import json
import re
import resource
import shlex
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import StrictUndefined, TemplateRuntimeError, TemplateSyntaxError
from jinja2.sandbox import SandboxedEnvironment

from rampcli.errors import printable
from rampcli.interpreter import python, safe_environment

CPU_S = 5
WALL_S = 60.0
"""Long enough for Python to start from a slow disk. A template cannot sleep, so that its own limit is `CPU_S`."""
MEMORY_GIB = 1
OUTPUT_MIB = 4
"""For all scripts of a chain. Slurm takes no larger script (max_script_size)."""
_UNUSUAL = re.compile(r"[^\w@%+=:,./ -]")


class TemplateError(Exception):
    """A template cannot be rendered.

    Attributes:
        line: of the template, or None if it is unknown.
        reason: what is wrong.
    """

    def __init__(self, line: int | None, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


def render(template: str, facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns what a template prints, for each mapping of names to values.

    Raises:
        TemplateError: it is not a template, an expression in it fails, or it prints more than `OUTPUT_MIB`.
    """
    environment = SandboxedEnvironment(
        undefined=StrictUndefined,
        finalize=_quote,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["directive"] = _quote_directive
    texts, left = list[str](), OUTPUT_MIB * 2**20
    try:
        compiled = environment.from_string(template)
        for names in facts:
            pieces = []
            for piece in compiled.generate(names):
                left -= len(piece)
                if left < 0:
                    raise TemplateRuntimeError(f"it prints more than {OUTPUT_MIB} MiB")
                pieces.append(piece)
            texts.append("".join(pieces))
    except MemoryError as error:
        raise TemplateError(
            _line_of(error), f"it takes more than {MEMORY_GIB} GiB of memory"
        ) from error
    except (
        Exception
    ) as error:  # an expression of the template may fail in any way that Python knows
        raise TemplateError(_line_of(error), str(error)) from error
    return texts


def render_within_limits(template: str, facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """As `render`, in a process of its own.

    Raises:
        TemplateError: as `render`, or it takes more time or memory than it may.
    """
    request = json.dumps({"template": template, "facts": facts, "cpu_s": CPU_S})
    try:
        done = subprocess.run(
            python(__name__),
            env=safe_environment(),
            input=request.encode(),
            capture_output=True,
            timeout=WALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TemplateError(None, f"it is not rendered after {WALL_S:g} s") from error
    if done.returncode == -signal.SIGKILL:
        raise TemplateError(None, _too_long(CPU_S))
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise TemplateError(None, f"rendering it ended with exit code {done.returncode}: {last}")
    answer = json.loads(done.stdout)
    if "reason" in answer:
        raise TemplateError(answer["line"], answer["reason"])
    return [str(text) for text in answer["texts"]]


def main() -> None:
    """Render the template that standard input holds, within limits; print the texts, or what is wrong, as JSON."""
    request = json.load(sys.stdin)
    _limit(request["cpu_s"])
    try:
        answer: dict[str, Any] = {"texts": render(request["template"], request["facts"])}
    except TemplateError as error:
        answer = {"line": error.line, "reason": printable(error.reason)}
    json.dump(answer, sys.stdout)


def _limit(cpu_s: int) -> None:
    """Limit this process. Out of time, it raises an error that has a line; within a single long operation, it is killed a second later."""

    def stop(*_: object) -> NoReturn:
        raise TimeoutError(_too_long(cpu_s))

    signal.signal(signal.SIGXCPU, stop)
    used = resource.getrusage(resource.RUSAGE_SELF)
    until = int(used.ru_utime + used.ru_stime) + cpu_s
    for limit, soft, hard in (
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_CPU, until, until + 1),
        (resource.RLIMIT_AS, MEMORY_GIB * 2**30, MEMORY_GIB * 2**30),
    ):
        most = resource.getrlimit(limit)[1]
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(limit, (soft, hard))


def _too_long(cpu_s: int) -> str:
    return f"it takes more than {cpu_s} s of processor time"


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
    """Text that is quoted already."""

    __slots__ = ()


def _quote(value: Any) -> str:
    """A printed value as one word of bash, a list as several.

    All that could mean something to bash is written in octal, so that a value in the wrong place, as inside of a template's own quotes or
    in a comment, may become another value but never a command.
    """
    if isinstance(value, _Quoted):
        return value
    if isinstance(value, list | tuple):
        return " ".join(map(_quote, value))
    if isinstance(value, str | int | float):
        text = str(value)
        return f"$'{_UNUSUAL.sub(_octal, text)}'" if _UNUSUAL.search(text) else shlex.quote(text)
    raise TemplateRuntimeError(f"{value} is no value to print")


def _octal(match: re.Match[str]) -> str:
    return "".join(f"\\{byte:03o}" for byte in match[0].encode(errors="surrogateescape"))


def _quote_directive(value: object) -> _Quoted:
    """A value as sbatch reads it in a `#SBATCH` line: a backslash keeps its meaning in quotes of either kind. Bash reads it alike."""
    text = str(value)
    if not text.isprintable():
        raise TemplateRuntimeError(f"{text!r} cannot stand on one line")
    if re.fullmatch(r"[\w@%+=:,./*-]+", text, re.ASCII):
        return _Quoted(text)
    return _Quoted('"' + re.sub(r'([\\"$`])', r"\\\1", text) + '"')


if __name__ == "__main__":
    main()
